//! The terminal and the log: what people and programs read, and how it is written.
//!
//! | module | purpose |
//! |---|---|
//! | `shown` | names as people see them: printed without effect on a terminal |
//! | `problem` | error messages, and the exit code of each |
//! | `units`, `columns` | sizes, times, tables |
//! | `console`, `logging` | standard output and error; the log |

pub mod columns;
pub mod console;
pub mod logging;
pub mod problem;
pub mod shown;
pub mod units;
