//! A proxy before the server that reads each request and each answer, and makes faults.
//!
//! A thread for each connection of a client, which has one connection to the server. It listens on
//! this host only, until the process ends.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::net::sockopt::set_socket_linger;

use super::faults::{Fault, Faults, KINDS, Outage};

/// No head of a request or an answer of S3's is longer.
const HEAD_MAX: u64 = 64 << 10;
/// No body of one is.
const BODY_MAX: u64 = 80 << 20;

/// See the [module](self).
#[derive(Debug, Clone)]
pub(super) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    faults: Faults,
    begun: Instant,
    requests: AtomicU64,
    counts: [AtomicU64; KINDS.len()],
    /// Requests that met an outage.
    in_outages: AtomicU64,
}

/// A request or an answer, as it was on the wire.
struct Message {
    bytes: Vec<u8>,
    /// Whether the connection ends with it.
    is_last: bool,
}

impl Proxy {
    /// Before the server at `endpoint`, an address such as `http://127.0.0.1:7070`.
    ///
    /// # Errors
    /// If the address is not of this form, or no port is free.
    pub(super) fn before(endpoint: &str, faults: Faults) -> anyhow::Result<Self> {
        let to = endpoint.strip_prefix("http://").map(|address| address.trim_end_matches('/'));
        let to: SocketAddr = to
            .and_then(|address| address.parse().ok())
            .with_context(|| format!("{endpoint}: not an address such as http://127.0.0.1:7070"))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            to,
            faults,
            begun: Instant::now(),
            requests: AtomicU64::new(0),
            counts: Default::default(),
            in_outages: AtomicU64::new(0),
        });
        let served = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shared = Arc::clone(&served);
                // A connection that fails is one that is closed: the client tries again.
                thread::spawn(move || serve(&client, &shared));
            }
        });
        Ok(Self { address, shared })
    }

    /// Where clients find the server.
    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests so far by what they met, as [`KINDS`] has it, and those that met an outage.
    pub(super) fn counts(&self) -> ([u64; KINDS.len()], u64) {
        // ORDERING: Relaxed; figures for the results.
        let count = |at: usize| self.shared.counts[at].load(Ordering::Relaxed);
        (std::array::from_fn(count), self.shared.in_outages.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn outage(&self) -> Option<(Outage, Duration)> {
        self.faults.outage_at(self.begun.elapsed())
    }

    /// What the next request meets.
    fn next(&self) -> Fault {
        // ORDERING: Relaxed; the counter only numbers the requests.
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let fault = self.faults.of_request(number);
        // ORDERING: Relaxed; a figure for the results.
        self.counts[fault.kind()].fetch_add(1, Ordering::Relaxed);
        fault
    }
}

/// Serves a client's connection until it ends, or a fault ends it.
fn serve(client: &TcpStream, shared: &Shared) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let mut asks = BufReader::new(client);
    let mut server: Option<BufReader<TcpStream>> = None;
    while let Some(request) = read_message(&mut asks, Answered::NoRequest)? {
        if let Some((outage, left)) = shared.outage() {
            // ORDERING: Relaxed; a figure for the results.
            shared.in_outages.fetch_add(1, Ordering::Relaxed);
            match outage {
                Outage::Resetting => return reset(client),
                Outage::Hanging => {
                    thread::sleep(left);
                    return reset(client);
                }
                Outage::Refusing => {
                    say(client, &refusal("503 Service Unavailable"))?;
                    if request.is_last {
                        return client.shutdown(Shutdown::Both);
                    }
                    continue;
                }
            }
        }
        let fault = shared.next();
        match fault {
            Fault::Refused(status) => {
                say(client, &refusal(status))?;
                if request.is_last {
                    return client.shutdown(Shutdown::Both);
                }
                continue;
            }
            Fault::Reset => return reset(client),
            Fault::Stalled(by) => thread::sleep(by),
            _ => {}
        }
        let answer = match ask(&mut server, shared.to, &request)? {
            Some(answer) => answer,
            // The server has closed a connection that was not in use.
            None => return reset(client),
        };
        match fault {
            Fault::AnswerReplaced => say(client, &refusal("500 Internal Server Error"))?,
            Fault::AnswerLost => return reset(client),
            Fault::Half => {
                say(client, &answer.bytes[..answer.bytes.len() / 2])?;
                return client.shutdown(Shutdown::Both);
            }
            Fault::HeldBack(by) => {
                thread::sleep(by);
                say(client, &answer.bytes)?;
            }
            _ => say(client, &answer.bytes)?,
        }
        if answer.is_last || request.is_last {
            return client.shutdown(Shutdown::Both);
        }
    }
    Ok(())
}

/// Passes a request on, by the connection that is there or a new one; the answer, if there is one.
fn ask(
    server: &mut Option<BufReader<TcpStream>>,
    to: SocketAddr,
    request: &Message,
) -> std::io::Result<Option<Message>> {
    let mut connection = match server.take() {
        Some(connection) => connection,
        None => {
            let stream = TcpStream::connect(to)?;
            stream.set_nodelay(true)?;
            BufReader::new(stream)
        }
    };
    connection.get_mut().write_all(&request.bytes)?;
    let answered =
        if request.bytes.starts_with(b"HEAD ") { Answered::WithoutBody } else { Answered::WithBody };
    let answer = read_message(&mut connection, answered)?;
    *server = answer.as_ref().is_some_and(|answer| !answer.is_last).then_some(connection);
    Ok(answer)
}

/// What is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answered {
    /// A request.
    NoRequest,
    /// The answer to a request for the head alone.
    WithoutBody,
    /// Another answer.
    WithBody,
}

/// A whole message; none where the connection ends before it.
fn read_message(
    from: &mut BufReader<impl std::io::Read>,
    what: Answered,
) -> std::io::Result<Option<Message>> {
    let invalid = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        let left = HEAD_MAX.checked_sub(bytes.len() as u64).ok_or_else(|| invalid("a long head"))?;
        if from.take(left).read_until(b'\n', &mut bytes)? == 0 {
            return if bytes.is_empty() { Ok(None) } else { Err(invalid("the end in a head")) };
        }
    }
    let head = String::from_utf8_lossy(&bytes).to_ascii_lowercase();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let is_last = header("connection").is_some_and(|value| value.trim() == "close");
    let status = head.split(' ').nth(1).unwrap_or_default();
    let has_none = match what {
        Answered::NoRequest => false,
        Answered::WithoutBody => true,
        Answered::WithBody => matches!(status, "204" | "304"),
    };
    let length = header("content-length").map(|value| value.trim().parse::<u64>());
    let is_chunked = header("transfer-encoding").is_some_and(|value| value.contains("chunked"));
    if has_none {
        return Ok(Some(Message { bytes, is_last }));
    }
    if is_chunked {
        read_chunks(from, &mut bytes)?;
    } else if let Some(length) = length {
        let length = length.ok().filter(|length| *length <= BODY_MAX).ok_or_else(|| invalid("a length"))?;
        if from.take(length).read_to_end(&mut bytes)? as u64 != length {
            return Err(invalid("the end in a body"));
        }
    } else if what == Answered::WithBody {
        from.take(BODY_MAX).read_to_end(&mut bytes)?;
        return Ok(Some(Message { bytes, is_last: true }));
    }
    Ok(Some(Message { bytes, is_last }))
}

/// The chunks of a body, with their lengths, and the lines after the last.
fn read_chunks(from: &mut BufReader<impl std::io::Read>, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    let invalid = || std::io::Error::new(std::io::ErrorKind::InvalidData, "not chunks");
    loop {
        let mut line = Vec::new();
        from.take(HEAD_MAX).read_until(b'\n', &mut line)?;
        let digits = String::from_utf8_lossy(&line);
        let length = u64::from_str_radix(digits.split(';').next().unwrap_or_default().trim(), 16);
        let length = length.ok().filter(|length| *length <= BODY_MAX).ok_or_else(invalid)?;
        bytes.extend_from_slice(&line);
        if length == 0 {
            break;
        }
        // The chunk's own end of line belongs to it.
        if from.take(length + 2).read_to_end(bytes)? as u64 != length + 2 {
            return Err(invalid());
        }
    }
    loop {
        let mut line = Vec::new();
        if from.take(HEAD_MAX).read_until(b'\n', &mut line)? == 0 {
            return Err(invalid());
        }
        bytes.extend_from_slice(&line);
        if line == b"\r\n" {
            return Ok(());
        }
    }
}

/// An answer of this status, as S3 has it.
fn refusal(status: &str) -> Vec<u8> {
    let code = match status.split(' ').next() {
        Some("503" | "429") => "SlowDown",
        _ => "InternalError",
    };
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>by a seed</Message></Error>");
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

fn say(mut to: &TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes)
}

/// Ends the connection by a reset: what was not sent is thrown away.
fn reset(client: &TcpStream) -> std::io::Result<()> {
    set_socket_linger(client, Some(Duration::ZERO))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8], what: Answered) -> std::io::Result<Option<(usize, bool)>> {
        let message = read_message(&mut BufReader::new(bytes), what)?;
        Ok(message.map(|message| (message.bytes.len(), message.is_last)))
    }

    #[test]
    fn messages_are_read_whole_and_no_further() {
        let put = b"PUT /b/k HTTP/1.1\r\nContent-Length: 3\r\n\r\nabcGET /";
        assert_eq!(read(put, Answered::NoRequest).unwrap(), Some((put.len() - 5, false)));
        let get = b"GET /b/k HTTP/1.1\r\nConnection: close\r\n\r\n";
        assert_eq!(read(get, Answered::NoRequest).unwrap(), Some((get.len(), true)));
        let chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nHTTP";
        assert_eq!(read(chunks, Answered::WithBody).unwrap(), Some((chunks.len() - 4, false)));
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n";
        assert_eq!(read(head, Answered::WithoutBody).unwrap(), Some((head.len(), false)));
        assert!(read(head, Answered::WithBody).is_err(), "the body is missing");
        let none = b"HTTP/1.1 204 No Content\r\n\r\n";
        assert_eq!(read(none, Answered::WithBody).unwrap(), Some((none.len(), false)));
        let until_the_end = b"HTTP/1.1 200 OK\r\n\r\nabc";
        assert_eq!(read(until_the_end, Answered::WithBody).unwrap(), Some((until_the_end.len(), true)));
        assert_eq!(read(b"", Answered::NoRequest).unwrap(), None);
        assert!(read(b"GET / HT", Answered::NoRequest).is_err());
        let long = format!("GET / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", BODY_MAX + 1);
        assert!(read(long.as_bytes(), Answered::NoRequest).is_err());
    }

    #[test]
    fn a_client_meets_each_fault() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let endpoint = format!("http://{}", server.local_addr().unwrap());
        thread::spawn(move || {
            for client in server.incoming().flatten() {
                thread::spawn(move || {
                    let mut asks = BufReader::new(client.try_clone().unwrap());
                    while let Ok(Some(_)) = read_message(&mut asks, Answered::NoRequest) {
                        say(&client, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwell").unwrap();
                    }
                });
            }
        });
        let proxy = Proxy::before(&endpoint, Faults::new(3)).unwrap();
        let mut seen = [0_u32; 4];
        let has_met_all = |seen: &[u32]| {
            seen.iter().all(|count| *count > 0) && proxy.counts().0.iter().all(|count| *count > 0)
        };
        // The rarest faults meet one request in 250 each.
        for _ in 0..10_000 {
            if has_met_all(&seen) {
                break;
            }
            let mut stream = TcpStream::connect(proxy.address).unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            let read = stream.read_to_string(&mut answer);
            let kind = match (&read, answer.as_str()) {
                (Ok(_), whole) if whole.ends_with("well") => 0,
                (Ok(_), refused) if refused.contains("by a seed") => 1,
                (Ok(_), _) => 2,
                (Err(_), _) => 3,
            };
            seen[kind] += 1;
        }
        assert!(has_met_all(&seen), "{seen:?}, {:?}", proxy.counts());
        assert!(Proxy::before("https://example.com", Faults::new(1)).is_err());
    }
}
