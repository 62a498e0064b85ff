//! A server that is further away: a proxy that holds back all that the server says for a while, and
//! counts what its clients ask for.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::wire::{Counts, Reader, Sent};

/// Parts of an answer that are held back at a time, for each connection.
const HELD: usize = 1024;
const PART: usize = 64 << 10;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Delay {
    server: SocketAddr,
    nanos: Arc<AtomicU64>,
}

/// An address of a client's own, by which its requests are told from those of others. It is served
/// on this host only, until the process ends.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) address: SocketAddr,
    counts: Arc<Counts>,
}

impl Line {
    /// By what serves this address, and counts nothing.
    pub(super) fn at(address: SocketAddr) -> Self {
        Self { address, counts: Arc::default() }
    }

    /// Where the client finds the server.
    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What was sent so far.
    ///
    /// # Errors
    /// If a connection was not understood, so that requests are missing.
    pub(super) fn sent(&self) -> anyhow::Result<Sent> {
        let sent = self.counts.sent();
        ensure!(sent.lost == 0, "{} connections on which requests cannot be counted", sent.lost);
        Ok(sent)
    }
}

impl Delay {
    /// Before the server at `endpoint`, an address such as `http://127.0.0.1:7070`.
    ///
    /// # Errors
    /// If the address is not of this form.
    pub(super) fn before(endpoint: &str) -> anyhow::Result<Self> {
        let to = endpoint.strip_prefix("http://").map(|address| address.trim_end_matches('/'));
        let server = to.and_then(|address| address.parse().ok()).with_context(|| {
            format!("{endpoint}: a server is delayed at an address such as http://127.0.0.1:7070")
        })?;
        Ok(Self { server, nanos: Arc::new(AtomicU64::new(0)) })
    }

    /// A new address by which a client finds the server.
    ///
    /// # Errors
    /// If no port is free.
    pub(super) fn line(&self) -> anyhow::Result<Line> {
        self.line_to(self.server)
    }

    /// As [`line`](Self::line), to another server that is as far away.
    ///
    /// # Errors
    /// If no port is free.
    pub(super) fn line_to(&self, to: SocketAddr) -> anyhow::Result<Line> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let line = Line { address: listener.local_addr()?, counts: Arc::default() };
        let (delay, counts) = (Arc::clone(&self.nanos), Arc::clone(&line.counts));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (delay, counts) = (Arc::clone(&delay), Arc::clone(&counts));
                // A connection that cannot be made is one that is closed: the client tries again.
                thread::spawn(move || {
                    TcpStream::connect(to).and_then(|server| relay(&client, &server, (&delay, &counts)))
                });
            }
        });
        Ok(line)
    }

    /// Sets how long each part of an answer is held back.
    pub(super) fn set(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        // ORDERING: Relaxed; a figure, and nothing else is published with it.
        self.nanos.store(nanos, Ordering::Relaxed);
    }
}

/// Passes on what both say, until one has closed its side.
fn relay(
    client: &TcpStream,
    server: &TcpStream,
    (nanos, counts): (&AtomicU64, &Counts),
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (held, to_be_said) = sync_channel(HELD);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _closed = pass_on(client, server, Reader::new(counts));
            let _closed_already = server.shutdown(Shutdown::Write);
        });
        scope.spawn(move || {
            let _closed = say(&to_be_said, client);
            let _closed_already = client.shutdown(Shutdown::Both);
        });
        let mut server_says = server;
        loop {
            let mut part = vec![0; PART];
            let read = server_says.read(&mut part);
            let len = read.as_ref().map_or(0, |len| *len);
            part.truncate(len);
            counts.add_down(len);
            // ORDERING: Relaxed, as above.
            let due = Instant::now() + Duration::from_nanos(nanos.load(Ordering::Relaxed));
            if len == 0 || held.send((due, part)).is_err() {
                drop(held);
                let _closed_already = server.shutdown(Shutdown::Both);
                return read.map(drop);
            }
        }
    })
}

fn pass_on(mut from: &TcpStream, mut to: &TcpStream, mut reader: Reader<'_>) -> std::io::Result<()> {
    let mut part = vec![0; PART];
    loop {
        let len = from.read(&mut part)?;
        if len == 0 {
            return Ok(());
        }
        reader.read(&part[..len]);
        to.write_all(&part[..len])?;
    }
}

/// Says each part when it is due.
fn say(parts: &Receiver<(Instant, Vec<u8>)>, mut to: &TcpStream) -> std::io::Result<()> {
    for (due, part) in parts {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        to.write_all(&part)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_held_back_and_comes_whole() {
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = server.local_addr().unwrap();
        let answering = thread::spawn(move || {
            let (mut client, _) = server.accept().unwrap();
            let mut asked = [0; 3];
            for _ in 0..2 {
                client.read_exact(&mut asked).unwrap();
                client.write_all(&vec![asked[0]; 3 * PART]).unwrap();
            }
        });
        let delay = Delay::before(&format!("http://{address}/")).unwrap();
        let line = delay.line().unwrap();
        let mut client = TcpStream::connect(line.address).unwrap();
        let mut answer = vec![0; 3 * PART];
        for (byte, held_back) in [(b'a', Duration::from_millis(80)), (b'b', Duration::ZERO)] {
            delay.set(held_back);
            let begun = Instant::now();
            client.write_all(&[byte; 3]).unwrap();
            client.read_exact(&mut answer).unwrap();
            assert!(answer.iter().all(|found| *found == byte));
            assert!(begun.elapsed() >= held_back, "{:?}", begun.elapsed());
        }
        answering.join().unwrap();
        assert_eq!(client.read(&mut answer).unwrap(), 0, "the end of the connection is passed on");
        assert!(Delay::before("https://example.com").is_err());
        assert!(line.sent().is_ok(), "what has no end of a line is no request yet");
        assert_eq!(line.counts.sent().bytes_down, 6 * PART as u64);
        assert_eq!(delay.line().unwrap().counts.sent(), Sent::default(), "each client has its own figures");
    }
}
