//! A proxy in front of a server that fails on request. While it has no fault it passes everything on.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;

use super::super::wire::{Counts, Reader};

/// How it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It answers every request with this status.
    Status(&'static str),
    /// It passes requests on, and its answers end half-way.
    Half,
    /// It reads requests, and answers none.
    Hangs,
    /// It closes every connection.
    Closes,
}

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    /// Both sides of the connections since the last change.
    open: Vec<TcpStream>,
}

/// See the [module](self). It listens on this host only, until the process ends.
#[derive(Debug)]
pub(super) struct Own {
    pub(super) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Own {
    /// Before the server at this address.
    ///
    /// # Errors
    /// If no port is free.
    pub(super) fn before(server: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let own = Self { address: listener.local_addr()?, state: Arc::default() };
        let state = Arc::clone(&own.state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&state);
                // An error is one of a connection, which ends with it: the client tries again.
                thread::spawn(move || serve(&client, server, &state));
            }
        });
        Ok(own)
    }

    /// From now on it fails so, or not any more. Connections from before end.
    pub(super) fn fail(&self, fault: Option<Fault>) {
        let mut state = self.state.lock();
        state.fault = fault;
        for stream in state.open.drain(..) {
            let _closed_already = stream.shutdown(Shutdown::Both);
        }
    }
}

fn serve(client: &TcpStream, server: SocketAddr, state: &Mutex<State>) -> std::io::Result<()> {
    let server = TcpStream::connect(server)?;
    let fault = {
        let mut state = state.lock();
        state.open.extend([client.try_clone()?, server.try_clone()?]);
        state.fault
    };
    match fault {
        None => relay(client, &server, false),
        Some(Fault::Half) => relay(client, &server, true),
        Some(Fault::Status(status)) => answer(client, status),
        Some(Fault::Hangs) => std::io::copy(&mut { client }, &mut std::io::sink()).map(drop),
        Some(Fault::Closes) => client.shutdown(Shutdown::Both),
    }
}

/// Passes on what both say; with `is_half` half of the server's first words, and then the end.
fn relay(client: &TcpStream, server: &TcpStream, is_half: bool) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ended = std::io::copy(&mut { client }, &mut { server });
            let _closed_already = server.shutdown(Shutdown::Both);
        });
        let said = if is_half {
            let mut part = [0; 4096];
            let len = { server }.read(&mut part);
            len.and_then(|len| { client }.write_all(&part[..len / 2]))
        } else {
            std::io::copy(&mut { server }, &mut { client }).map(drop)
        };
        let _closed_already = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        said
    })
}

/// Answers each request with a status, once it is read as a whole.
fn answer(mut client: &TcpStream, status: &str) -> std::io::Result<()> {
    let counts = Counts::default();
    let said = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
    let (mut reader, mut answered, mut part) = (Reader::new(&counts), 0, vec![0; 64 << 10]);
    loop {
        let len = client.read(&mut part)?;
        if len == 0 {
            return Ok(());
        }
        reader.read(&part[..len]);
        while reader.is_between_requests() && answered < counts.sent().all() {
            client.write_all(said.as_bytes())?;
            answered += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(address: SocketAddr) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.write_all(b"PUT /b/k HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc")?;
        let mut answer = [0; 4096];
        let len = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..len]).into_owned())
    }

    #[test]
    fn it_fails_as_it_is_told_and_is_well_again() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut asked = [0; 4096];
                    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                    while client.read(&mut asked).is_ok_and(|len| len > 0) && client.write_all(answer).is_ok()
                    {
                    }
                });
            }
        });
        let own = Own::before(server).unwrap();
        assert!(ask(own.address).unwrap().starts_with("HTTP/1.1 200 OK"));
        own.fail(Some(Fault::Status("503 Slow Down")));
        assert_eq!(ask(own.address).unwrap(), "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n");
        own.fail(Some(Fault::Half));
        assert_eq!(ask(own.address).unwrap(), "HTTP/1.1 200 OK\r\nCo");
        own.fail(Some(Fault::Closes));
        assert_eq!(ask(own.address).unwrap_or_default(), "");
        own.fail(Some(Fault::Hangs));
        let address = own.address;
        let asking = thread::spawn(move || ask(address));
        while own.state.lock().open.is_empty() {
            thread::yield_now();
        }
        assert!(!asking.is_finished());
        own.fail(None);
        assert_eq!(asking.join().unwrap().unwrap_or_default(), "", "it ends when the fault does");
        assert!(ask(own.address).unwrap().starts_with("HTTP/1.1 200 OK"));
    }
}
