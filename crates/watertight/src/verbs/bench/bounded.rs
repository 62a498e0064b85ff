//! Waiting for calls that may never return.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use crate::host::spawn_for_result;
use crate::term::problem::{Problem, Result};

/// The result of `work`, on a thread of its own; none if that takes longer than `limit`: then the
/// thread is left alone, with everything that `work` owns.
///
/// # Errors
/// Where there is no thread, or `work` panics.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    let result = spawn_for_result("bench", work)
        .map_err(|error| Problem::failure(format!("bench: cannot start a thread: {error}")))?;
    match result.recv_timeout(limit) {
        Ok(done) => Ok(Some(done)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(Problem::failure("bench: it has failed")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_does_not_end_is_left_to_itself() {
        let (end, ended) = channel::<()>();
        assert_eq!(within(Duration::from_millis(1), move || ended.recv().is_err()).unwrap(), None);
        drop(end);
        assert_eq!(within(Duration::from_secs(3600), || 7).unwrap(), Some(7));
    }
}
