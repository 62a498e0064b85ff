//! Why a call is refused or failed: a code that orchestrators act on, and words for people.

use csi_proto::tonic::{Code, Response, Status};

use crate::containers::turns::Late;
use crate::term::shown::in_one_line;

/// Bytes of the words that are sent.
const WORDS_BYTES_MAX: usize = 4 << 10;

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: Code,
    words: String,
}

pub(super) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(super) fn new(code: Code, words: impl AsRef<str>) -> Self {
        Self { code, words: bounded(words.as_ref()) }
    }

    pub(super) fn invalid(words: impl AsRef<str>) -> Self {
        Self::new(Code::InvalidArgument, words)
    }

    pub(super) fn not_found(words: impl AsRef<str>) -> Self {
        Self::new(Code::NotFound, words)
    }

    /// It is not in the state that the call needs.
    pub(super) fn not_ready(words: impl AsRef<str>) -> Self {
        Self::new(Code::FailedPrecondition, words)
    }

    pub(super) fn internal(words: impl AsRef<str>) -> Self {
        Self::new(Code::Internal, words)
    }

    pub(super) fn words(&self) -> &str {
        &self.words
    }
}

/// Words in one line, as much as is sent.
pub(super) fn bounded(words: &str) -> String {
    let mut words = in_one_line(words);
    if let Some((end, _)) = words.char_indices().find(|(at, _)| *at >= WORDS_BYTES_MAX) {
        words.truncate(end);
    }
    words
}

/// The answer to a call.
pub(super) type Answered<T> = std::result::Result<Response<T>, Status>;

/// Answers a call; a failure is logged as well.
pub(super) fn answered<T>(done: Result<T>) -> Answered<T> {
    done.map(Response::new).map_err(|failure| {
        tracing::warn!(code = ?failure.code, "{}", failure.words());
        failure.into()
    })
}

impl From<Late> for Failure {
    fn from(late: Late) -> Self {
        let code = match late {
            // The orchestrator asks again.
            Late::Waits(_) | Late::GoesOn(_) => Code::Aborted,
            Late::Panicked(_) => Code::Internal,
        };
        Self::new(code, late.to_string())
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        Self::new(failure.code, failure.words)
    }
}
