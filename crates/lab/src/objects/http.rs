//! Requests to the servers that the lab itself starts.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context as _, ensure};
use serde_json::Value;

/// Sends a request; the JSON of the answer, if it has some.
///
/// # Errors
/// If the server does not answer, or not with success.
pub(super) fn ask(server: SocketAddr, method: &str, target: &str, body: &str) -> anyhow::Result<Value> {
    let mut stream = TcpStream::connect(server)?;
    let len = body.len();
    // By HTTP/1.0, so that the answer is in one piece and ends with the connection.
    write!(
        stream,
        "{method} {target} HTTP/1.0\r\nHost: {server}\r\nContent-Type: application/json\r\n\
         Content-Length: {len}\r\n\r\n{body}"
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    read(&String::from_utf8(answer)?).with_context(|| format!("{method} {target}"))
}

fn read(answer: &str) -> anyhow::Result<Value> {
    let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status.starts_with('2'), "{} {body}", head.lines().next().unwrap_or_default());
    if body.is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(body)?) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_json_or_an_error_with_its_words() {
        assert_eq!(read("HTTP/1.0 200 OK\r\nA: b\r\n\r\n{\"a\":1}").unwrap()["a"], 1);
        assert_eq!(read("HTTP/1.1 204 No Content\r\n\r\n").unwrap(), Value::Null);
        let error = read("HTTP/1.0 409 Conflict\r\n\r\nit is there").unwrap_err().to_string();
        assert_eq!(error, "HTTP/1.0 409 Conflict it is there");
        assert!(read("HTTP/1.0 200 OK\r\n").is_err());
    }
}
