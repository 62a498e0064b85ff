//! Why a request was not answered, in plain words.
//!
//! An object store's error is text in the end: the crate keeps the status and the server's XML to
//! itself, and displays them. So the status and the XML's `Code` are read from the text, whose form
//! a test against a real socket pins; of the text itself nothing is displayed but `Code`, `Region`
//! and, of a refusal that has no words here, `Message`: the rest may hold a token or what was signed.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};
use store::{Error, ErrorKind};

/// The longest text that a server's answer contributes to a message.
const MAX_TEXT: usize = 200;

/// What messages say about the place, beside the problem.
#[derive(Debug, Clone, Default)]
pub(crate) struct About {
    /// The volume's URL.
    pub(crate) url: String,
    /// Where credentials were looked for, and what was found.
    pub(crate) credentials: String,
}

/// An attempt that went over its time limit.
#[derive(Debug)]
pub(crate) struct OverLimit(pub(crate) Duration);

impl fmt::Display for OverLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer within {:?}", self.0)
    }
}

impl StdError for OverLimit {}

/// When a request may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// As long as patience lasts: the store is ill, or busy.
    Always,
    /// For a moment; without end only where the volume is mounted.
    Briefly,
    /// Where the volume is mounted, until somebody puts it right.
    Mounted,
    /// It would fail again.
    Never,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    NoBucket,
    Region(Option<String>),
    Denied,
    Credentials(String),
    NoCredentials,
    ClockSkew,
    Certificate(String),
    NoTls,
    NameNotResolved,
    Refused,
    TimedOut,
    Broken,
    Throttled,
    Server(u16),
    Conflict,
    NoSpace,
    Local(String),
    Unsupported(String),
    Refusal(String),
    Odd(String),
}

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    cause: Cause,
    is_unknown: bool,
}

impl Problem {
    /// `None`: the error is the store's answer to the request, as "there is no such object".
    pub(crate) fn of(error: &StoreError) -> Option<Self> {
        let seen = Seen::of(error);
        let is_answer = match error {
            StoreError::NotFound { .. } | StoreError::Precondition { .. } => !seen.is_no_bucket(),
            // Amazon's 409 says that another request is under way, Azure's that the object is there.
            StoreError::AlreadyExists { .. } => !seen.is_conflict(),
            StoreError::NotModified { .. } => true,
            _ => false,
        };
        (!is_answer).then(|| seen.problem(error))
    }

    /// Whether the request may have been carried out all the same.
    pub(crate) const fn is_unknown(&self) -> bool {
        self.is_unknown
    }

    /// Whether the store asks for fewer requests.
    pub(crate) const fn is_throttle(&self) -> bool {
        matches!(self.cause, Cause::Throttled)
    }

    pub(crate) const fn retry(&self) -> Retry {
        match self.cause {
            Cause::TimedOut | Cause::Broken | Cause::Throttled | Cause::Server(_) | Cause::Conflict => {
                Retry::Always
            }
            Cause::NameNotResolved | Cause::Refused | Cause::Odd(_) => Retry::Briefly,
            Cause::NoBucket
            | Cause::Region(_)
            | Cause::Denied
            | Cause::Credentials(_)
            | Cause::NoCredentials
            | Cause::ClockSkew
            | Cause::Certificate(_)
            | Cause::NoTls
            | Cause::NoSpace
            | Cause::Local(_) => Retry::Mounted,
            Cause::Unsupported(_) | Cause::Refusal(_) => Retry::Never,
        }
    }

    /// The error of the operation `op` on the object `name`.
    pub(crate) fn error(&self, op: &'static str, name: &str, about: &About) -> Error {
        let kind = match self.cause {
            // Not `NotFound`, which says that an object is not there.
            Cause::NoBucket => ErrorKind::NoDevice,
            Cause::Region(_) | Cause::NoTls | Cause::Certificate(_) => ErrorKind::Invalid,
            Cause::Denied | Cause::Credentials(_) | Cause::NoCredentials | Cause::ClockSkew => {
                ErrorKind::AccessDenied
            }
            Cause::TimedOut => ErrorKind::TimedOut,
            Cause::NoSpace => ErrorKind::NoSpace,
            Cause::Unsupported(_) => ErrorKind::Unsupported,
            _ => ErrorKind::Io,
        };
        let looked = match self.cause {
            Cause::NoCredentials | Cause::Credentials(_) | Cause::Denied if !about.credentials.is_empty() => {
                format!("; {}", about.credentials)
            }
            _ => String::new(),
        };
        let slash = if name.is_empty() { "" } else { "/" };
        Error::with(kind, op, format!("{}{slash}{name}: {self}{looked}", about.url))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Cause::NoBucket => {
                f.write_str("there is no such bucket; is its name right, and AWS_ENDPOINT_URL?")
            }
            Cause::Region(Some(region)) => {
                write!(f, "the bucket is in another region; set AWS_REGION={region}")
            }
            Cause::Region(None) => f.write_str("the bucket is in another region; set AWS_REGION to it"),
            Cause::Denied => f.write_str("access denied: the credentials do not allow this request"),
            Cause::Credentials(code) => write!(f, "the server does not accept the credentials ({code})"),
            Cause::NoCredentials => f.write_str("no credentials were found"),
            Cause::ClockSkew => f.write_str("this host's clock differs too much from the server's; set it"),
            Cause::Certificate(why) => write!(
                f,
                "the server's certificate is not accepted ({why}); a certificate authority of one's own \
                 goes into AWS_CA_BUNDLE"
            ),
            Cause::NoTls => f.write_str("the server does not speak TLS; write http:// in AWS_ENDPOINT_URL"),
            Cause::NameNotResolved => f.write_str("the server's name cannot be resolved"),
            Cause::Refused => f.write_str("no connection to the server: it refuses, or nothing is there"),
            Cause::TimedOut => f.write_str("the server does not answer in time"),
            Cause::Broken => f.write_str("the connection to the server broke"),
            Cause::Throttled => f.write_str("the server asks for fewer requests"),
            Cause::Server(status) => write!(f, "the server fails (status {status})"),
            Cause::Conflict => f.write_str("the server has another request for this object under way"),
            Cause::NoSpace => f.write_str("the store is full"),
            Cause::Local(why) => f.write_str(why),
            Cause::Unsupported(what) => write!(f, "the server does not support this: {what}"),
            Cause::Refusal(why) => write!(f, "the server refuses the request: {why}"),
            Cause::Odd(what) => write!(f, "the answer makes no sense: {what}"),
        }
    }
}

/// Whether a store says that a range is behind the object's end.
pub(crate) fn is_range_error(error: &StoreError) -> bool {
    let StoreError::Generic { .. } = error else { return false };
    let text = error.to_string();
    text.contains("non-2xx status code: 416")
        || text.contains("nvalid range")
        || text.contains("range start too large")
        || text.contains("range was invalid")
        || text.contains("but object was only")
}

/// What can be seen in an error and its sources.
#[derive(Debug, Default)]
struct Seen {
    /// The texts of all, one a line.
    text: String,
    status: Option<u16>,
    code: String,
    http: Option<HttpErrorKind>,
    io: Option<(std::io::ErrorKind, String)>,
    is_over_limit: bool,
}

impl Seen {
    fn of(error: &StoreError) -> Self {
        let mut seen = Self::default();
        let mut next: Option<&(dyn StdError + 'static)> = Some(error);
        while let Some(error) = next {
            seen.text += &error.to_string();
            seen.text.push('\n');
            seen.is_over_limit |= error.is::<OverLimit>();
            if let Some(http) = error.downcast_ref::<HttpError>() {
                seen.http = Some(http.kind());
            }
            // `source` of an I/O error passes over the error that it wraps.
            let io = error.downcast_ref::<std::io::Error>();
            if let Some(io) = io {
                seen.io = Some((io.kind(), clean(&io.to_string())));
            }
            next = match io.and_then(std::io::Error::get_ref) {
                Some(wrapped) => Some(wrapped),
                None => error.source(),
            };
        }
        seen.status =
            seen.text.split("non-2xx status code: ").nth(1).and_then(|rest| rest.get(..3)?.parse().ok());
        seen.code = seen.element("Code").unwrap_or_default();
        seen
    }

    /// The content of the first such element of the server's XML.
    fn element(&self, name: &str) -> Option<String> {
        let (_, rest) = self.text.split_once(&format!("<{name}>"))?;
        let (content, _) = rest.split_once(&format!("</{name}>"))?;
        Some(clean(content))
    }

    fn has(&self, text: &str) -> bool {
        self.text.contains(text)
    }

    fn is_code(&self, codes: &[&str]) -> bool {
        codes.contains(&self.code.as_str())
    }

    fn is_no_bucket(&self) -> bool {
        self.is_code(&["NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"])
    }

    fn is_conflict(&self) -> bool {
        self.status == Some(409)
            && self.is_code(&["ConditionalRequestConflict", "OperationAborted", "Conflict", ""])
    }

    fn problem(&self, error: &StoreError) -> Problem {
        let cause = self.cause(error);
        let is_unknown = match &cause {
            Cause::TimedOut | Cause::Broken | Cause::Server(_) | Cause::Odd(_) | Cause::Local(_) => true,
            // Proxies answer 503 for a server that did the work and then did not answer.
            Cause::Throttled => self.status != Some(429),
            _ => false,
        };
        Problem { cause, is_unknown }
    }

    fn cause(&self, error: &StoreError) -> Cause {
        match error {
            StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => {
                return Cause::Unsupported(clean(&error.to_string()));
            }
            StoreError::InvalidPath { .. } => return Cause::Refusal(clean(&error.to_string())),
            _ => {}
        }
        // Before anything else: the answers of the services that hand out credentials.
        if self.has("/latest/api/token")
            || self.has("/latest/meta-data")
            || self.has("metadata.google.internal")
        {
            return Cause::NoCredentials;
        }
        self.by_code().or_else(|| self.by_status()).or_else(|| self.by_connection()).unwrap_or_else(|| {
            match &self.io {
                Some((kind, why)) if self.http.is_none() => by_io(*kind, why),
                _ => Cause::Odd(clean(&error.to_string())),
            }
        })
    }

    fn by_code(&self) -> Option<Cause> {
        const REGION: [&str; 5] = [
            "AuthorizationHeaderMalformed",
            "PermanentRedirect",
            "Redirect",
            "TemporaryRedirect",
            "IllegalLocationConstraintException",
        ];
        const CREDENTIALS: [&str; 11] = [
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "ExpiredToken",
            "ExpiredTokenException",
            "InvalidToken",
            "InvalidIdentityToken",
            "TokenRefreshRequired",
            "InvalidSecurity",
            "AuthenticationFailed",
            "AuthenticationRequired",
            "InvalidClientTokenId",
        ];
        const DENIED: [&str; 6] = [
            "AccessDenied",
            "AccountProblem",
            "AllAccessDisabled",
            "AuthorizationFailure",
            "AuthorizationPermissionMismatch",
            "InsufficientAccountPermissions",
        ];
        const THROTTLED: [&str; 5] =
            ["SlowDown", "ServerBusy", "RequestLimitExceeded", "Throttling", "ThrottlingException"];
        const FULL: [&str; 3] = ["QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded"];
        Some(match () {
            () if self.is_no_bucket() => Cause::NoBucket,
            () if self.is_code(&REGION) => {
                Cause::Region(self.element("Region").filter(|region| !region.is_empty()))
            }
            () if self.is_code(&["RequestTimeTooSkewed", "RequestExpired"]) => Cause::ClockSkew,
            () if self.is_code(&CREDENTIALS) => Cause::Credentials(self.code.clone()),
            () if self.is_code(&DENIED) => Cause::Denied,
            () if self.is_code(&THROTTLED) => Cause::Throttled,
            () if self.is_code(&FULL) => Cause::NoSpace,
            () if self.is_code(&["NotImplemented", "MethodNotAllowed"]) => Cause::Unsupported(self.words()),
            () if self.is_code(&["RequestTimeout", "RequestTimeTooLong"]) => Cause::TimedOut,
            () if self.is_code(&["InternalError"]) => Cause::Server(self.status.unwrap_or(500)),
            () if self.is_conflict() => Cause::Conflict,
            () => return None,
        })
    }

    fn by_status(&self) -> Option<Cause> {
        if self.has("redirect without LOCATION") {
            return Some(Cause::Region(None));
        }
        Some(match self.status? {
            300..400 => Cause::Region(None),
            400 if self.has("HTTP request to an HTTPS server") => {
                Cause::Refusal("it speaks TLS; write https:// in AWS_ENDPOINT_URL".to_owned())
            }
            401 => Cause::Credentials("status 401".to_owned()),
            403 => Cause::Denied,
            404 => {
                Cause::Refusal("it knows no such address (status 404); is AWS_ENDPOINT_URL right?".to_owned())
            }
            408 => Cause::TimedOut,
            429 | 503 => Cause::Throttled,
            501 => Cause::Unsupported(self.words()),
            507 => Cause::NoSpace,
            status @ 500.. => Cause::Server(status),
            _ => Cause::Refusal(self.words()),
        })
    }

    fn by_connection(&self) -> Option<Cause> {
        if self.is_over_limit {
            return Some(Cause::TimedOut);
        }
        let http = self.http?;
        Some(if self.has("InvalidContentType") {
            Cause::NoTls
        } else if let Some((_, why)) = self.text.split_once("invalid peer certificate: ") {
            Cause::Certificate(clean(why.lines().next().unwrap_or_default()))
        } else if self.has("dns error") {
            Cause::NameNotResolved
        } else {
            match http {
                HttpErrorKind::Timeout => Cause::TimedOut,
                HttpErrorKind::Connect => Cause::Refused,
                _ => Cause::Broken,
            }
        })
    }

    /// What the server said of a refusal that has no words here.
    fn words(&self) -> String {
        let status = self.status.map_or_else(String::new, |status| format!("status {status}"));
        let message = self.element("Message").unwrap_or_default();
        let parts = [status, self.code.clone(), message];
        let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        if parts.is_empty() { "it says no more".to_owned() } else { parts.join(", ") }
    }
}

/// What a call to the file system failed with.
fn by_io(kind: std::io::ErrorKind, why: &str) -> Cause {
    match kind {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Cause::NoSpace,
        std::io::ErrorKind::PermissionDenied => Cause::Denied,
        _ => Cause::Local(why.to_owned()),
    }
}

/// A text of others, as far as it fits one line of a message.
fn clean(text: &str) -> String {
    let text = text.replace("&quot;", "\"").replace("&apos;", "'").replace("&lt;", "<").replace("&gt;", ">");
    let text = text.replace("&#39;", "'").replace("&#34;", "\"").replace("&amp;", "&");
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}
