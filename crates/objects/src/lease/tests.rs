//! Each step of the protocol by itself.

mod holders;
mod object;
mod takers;
