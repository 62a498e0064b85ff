//! A connection that gives a body to the answers that the HTTP library makes by itself: to what is no request, and to one whose head is too
//! large. That library gives them none; all answers of ours have one.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;

use super::api::ErrorReply;

/// The end of a head.
const END: &[u8] = b"\r\n\r\n";
/// What a head says that no body follows.
const NO_BODY: &str = "content-length: 0\r\n";

/// The connection.
#[derive(Debug)]
pub(super) struct Bodies {
    stream: UnixStream,
    /// What is left to be written in place of what was handed over.
    instead: Vec<u8>,
}

impl Bodies {
    pub(super) const fn new(stream: UnixStream) -> Self {
        Self { stream, instead: Vec::new() }
    }
}

impl AsyncRead for Bodies {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Bodies {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, instead } = self.get_mut();
        if instead.is_empty() {
            match with_body(buf) {
                Some(whole) => *instead = whole,
                None => return Pin::new(stream).poll_write(cx, buf),
            }
        }
        // Whoever is told to wait comes back with the same bytes.
        while !instead.is_empty() {
            let n = ready!(Pin::new(&mut *stream).poll_write(cx, instead))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            instead.drain(..n);
        }
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// `answer` with a body, if it ends with the head of an error without one.
fn with_body(answer: &[u8]) -> Option<Vec<u8>> {
    if !answer.ends_with(END) {
        return None;
    }
    let begin = answer.windows(9).rposition(|part| part == b"HTTP/1.1 ")?;
    let head = std::str::from_utf8(&answer[begin..]).ok()?;
    let status = head.split(' ').nth(1).filter(|status| status.starts_with('4'))?;
    let (before, after) = head.split_once(NO_BODY)?;
    let error = match status {
        "431" => "the request's head is too large".to_owned(),
        "414" => "the request's target is too long".to_owned(),
        _ => "this is no request of HTTP/1.1".to_owned(),
    };
    let body = serde_json::to_string(&ErrorReply { error }).ok()?;
    let length = body.len();
    let head = format!("{before}content-type: application/json\r\ncontent-length: {length}\r\n{after}{body}");
    Some([&answer[..begin], head.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_without_a_body_get_one_and_all_else_stays() {
        let bare = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        let before = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        for before in ["", before] {
            let whole = with_body(format!("{before}{bare}").as_bytes()).unwrap();
            let whole = String::from_utf8(whole).unwrap();
            let (head, body) = whole.strip_prefix(before).unwrap().split_once("\r\n\r\n").unwrap();
            assert_eq!(body, r#"{"error":"the request's head is too large"}"#);
            assert!(head.starts_with("HTTP/1.1 431 ") && head.ends_with("date: x"), "{head}");
            assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{head}");
            assert!(head.contains("\r\ncontent-type: application/json\r\n"), "{head}");
        }
        for other in ["", before, "0\r\n\r\n", "HTTP/1.1 404 Not Found\r\ncontent-length: 9\r\n\r\n"] {
            assert_eq!(with_body(other.as_bytes()), None, "{other}");
        }
    }
}
