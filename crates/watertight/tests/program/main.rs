//! The program as a person uses it: started, signalled, asked and told to leave.
//!
//! Every test has directories, a runtime directory and mounts of its own, and leaves none of them.
//! A test that needs something which this machine lacks prints a line `SKIPPED: …` and returns.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "names of its own, and nobody's terminal")]

mod attach;
mod background;
mod bad_input;
mod bench;
mod bind;
mod cgroups;
mod clones;
mod code_names;
mod contract;
mod control;
#[cfg(feature = "csi")]
mod csi;
mod demo;
mod docker;
mod doctor;
mod documents;
mod events;
mod foreign;
mod fuzzed;
mod helpers;
mod holders;
mod hostile;
mod limits;
mod logs;
mod manual;
mod matrix;
mod metrics;
mod names;
mod namespace;
#[cfg(feature = "objects")]
mod objects;
mod openapi;
mod places;
mod privileges;
mod recover;
mod rig;
mod sample;
mod serve;
mod serve_many;
mod service;
mod signals;
mod stalled;
mod stalled_attached;
mod stats;
mod syncing;
mod terminal;
mod throttling;
mod tmux;
mod top;
mod unmounting;
mod unprivileged;
mod upgrade;
mod verbs;
mod why;
#[cfg(not(feature = "objects"))]
mod without_objects;
