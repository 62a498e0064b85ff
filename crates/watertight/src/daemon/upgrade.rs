//! `upgrade`: another program takes the place of this one, and the mount goes on.
//!
//! Purpose: the process stays, with its id, its children and its place under the service manager;
//! execve(2) replaces its program. Descriptors of the kernel's connection, the store and its objects
//! stay open, and the rest is in a memory file (module `state`).
//!
//! | step | requests | if it fails |
//! |---|---|---|
//! | can this mount be handed over, may that file be executed (`program`) | are served | refused |
//! | dirty data is written and made durable | are served | refused |
//! | can that program take it over (`check`) | are served | refused |
//! | calls that change the mount end, others wait (`daemon::change_gate`) | are served | refused, they go on |
//! | requests under way end, no others are read | wait in the kernel | refused, they are read again |
//! | what was written meanwhile is made durable | wait | the same |
//! | all is written down; execve(2) | wait | the same |
//! | the new program takes over (`resume`) | wait | it executes the old program, which takes over |
//! | it serves | are served | as today: the mount ends with its process |
//!
//! The first three steps are the caller's, on a thread of the control socket. The others are the
//! supervisor's: while it waits for one of them it looks for events, signals among them, every 20 ms,
//! and refuses if one has come.
//!
//! # Lock order
//! The gate, then the volume's locks.

pub(crate) mod check;
pub(crate) mod prepare;
pub(crate) mod program;
pub(crate) mod replace;
pub(crate) mod resume;
pub(crate) mod state;
pub mod upgrader;
