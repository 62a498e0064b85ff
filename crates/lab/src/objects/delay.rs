//! A server that is further away: a proxy that holds back all that the server says for a while.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Parts of an answer that are held back at a time, for each connection.
const HELD: usize = 1024;
const PART: usize = 64 << 10;

/// See the [module](self). It listens on this host only, until the process ends.
#[derive(Debug)]
pub(super) struct Delay {
    address: SocketAddr,
    nanos: Arc<AtomicU64>,
}

impl Delay {
    /// Before the server at `endpoint`, an address such as `http://127.0.0.1:7070`.
    ///
    /// # Errors
    /// If the address is not of this form, or no port is free.
    pub(super) fn before(endpoint: &str) -> anyhow::Result<Self> {
        let to = endpoint.strip_prefix("http://").map(|address| address.trim_end_matches('/'));
        let to: SocketAddr = to.and_then(|address| address.parse().ok()).with_context(|| {
            format!("{endpoint}: a server is delayed at an address such as http://127.0.0.1:7070")
        })?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, nanos) = (listener.local_addr()?, Arc::new(AtomicU64::new(0)));
        let delay = Arc::clone(&nanos);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let delay = Arc::clone(&delay);
                // A connection that cannot be made is one that is closed: the client tries again.
                thread::spawn(move || {
                    TcpStream::connect(to).and_then(|server| relay(&client, &server, &delay))
                });
            }
        });
        Ok(Self { address, nanos })
    }

    /// Where clients find the server.
    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Sets how long each part of an answer is held back.
    pub(super) fn set(&self, delay: Duration) {
        let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
        // ORDERING: Relaxed; a figure, and nothing else is published with it.
        self.nanos.store(nanos, Ordering::Relaxed);
    }
}

/// Passes on what both say, until one has closed its side.
fn relay(client: &TcpStream, server: &TcpStream, nanos: &AtomicU64) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (held, to_be_said) = sync_channel(HELD);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _closed = pass_on(client, server);
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

fn pass_on(mut from: &TcpStream, mut to: &TcpStream) -> std::io::Result<()> {
    let mut part = vec![0; PART];
    loop {
        let len = from.read(&mut part)?;
        if len == 0 {
            return Ok(());
        }
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
        let mut client = TcpStream::connect(delay.address).unwrap();
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
    }
}
