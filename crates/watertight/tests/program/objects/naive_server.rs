//! A server on 127.0.0.1 that speaks as much of S3 as a volume needs. It may take no notice of some
//! conditions, and may be ill for a time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Objects by name, each with its version.
type Objects = Arc<Mutex<BTreeMap<String, (u64, Vec<u8>)>>>;

/// How it fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It answers every request with this status.
    Status(&'static str),
    /// It does what it is asked, and its answer ends half-way, or does not come at all.
    Half,
    /// It reads requests, and answers none.
    Hangs,
    /// It closes every connection.
    Closes,
}

/// Its fault, and the requests that met it.
#[derive(Default)]
struct Health {
    fault: Mutex<(Option<Fault>, u64)>,
    changed: Condvar,
}

/// See the [module](self). Its thread ends with the process.
pub(super) struct NaiveServer {
    address: String,
    objects: Objects,
    health: Arc<Health>,
}

impl NaiveServer {
    /// A server of the bucket `b` that ignores these headers.
    pub(super) fn ignoring(headers: &'static [&'static str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (objects, health) = (Objects::default(), Arc::<Health>::default());
        let shared = (Arc::clone(&objects), Arc::clone(&health));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (objects, health) = shared.clone();
                thread::spawn(move || serve(stream, &objects, &health, headers));
            }
        });
        Self { address, objects, health }
    }

    /// From now on it fails like this, or not any more; returns how many requests met the last fault.
    pub(super) fn fails(&self, fault: Option<Fault>) -> u64 {
        let (_, met) = std::mem::replace(&mut *self.health.fault.lock().unwrap(), (fault, 0));
        self.health.changed.notify_all();
        met
    }

    /// Sends a program to this server.
    pub(super) fn for_program(&self, command: &mut Command) {
        command.env("AWS_ENDPOINT_URL", &self.address).env("AWS_ACCESS_KEY_ID", "id");
        command.env("AWS_SECRET_ACCESS_KEY", "secret").env("AWS_REGION", "us-east-1");
    }

    /// Its host and port.
    pub(super) fn host(&self) -> String {
        self.address.trim_start_matches("http://").to_owned()
    }

    /// The names of its objects.
    pub(super) fn names(&self) -> Vec<String> {
        self.objects.lock().unwrap().keys().cloned().collect()
    }
}

#[derive(Default)]
struct Request {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Requests of a connection, until it ends.
fn serve(stream: TcpStream, objects: &Objects, health: &Health, ignored: &[&str]) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let Some(mut request) = read(&mut reader) else {
            writer.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").ok()?;
            return None;
        };
        request.headers.retain(|name, _| !ignored.contains(&name.as_str()));
        let fault = health.meets();
        match fault {
            None | Some(Fault::Half) => {}
            Some(Fault::Status(status)) => {
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
                writer.write_all(head.as_bytes()).ok()?;
                continue;
            }
            Some(Fault::Hangs) => {
                health.wait_while(Fault::Hangs);
                return None;
            }
            Some(Fault::Closes) => return None,
        }
        let (status, headers, body) = answer(&request, objects);
        let is_head = request.method == "HEAD";
        let head = format!(
            "HTTP/1.1 {status}\r\n{headers}Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        if fault.is_some() {
            if !body.is_empty() {
                writer.write_all(head.as_bytes()).ok()?;
                writer.write_all(&body[..body.len() / 2]).ok()?;
            }
            return None;
        }
        writer.write_all(head.as_bytes()).ok()?;
        writer.write_all(if is_head { &[] } else { &body }).ok()?;
    }
}

impl Health {
    fn meets(&self) -> Option<Fault> {
        let mut fault = self.fault.lock().unwrap();
        fault.1 += 1;
        fault.0
    }

    fn wait_while(&self, fault: Fault) {
        let held = self.changed.wait_while(self.fault.lock().unwrap(), |now| now.0 == Some(fault));
        drop(held.unwrap());
    }
}

/// The range of a body that a request asks for, with the header that says so.
fn part(request: &Request, body: Vec<u8>) -> (&'static str, String, Vec<u8>) {
    let Some(range) = request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")) else {
        return ("200 OK", String::new(), body);
    };
    let (from, to) = range.split_once('-').unwrap();
    let (from, last): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
    let to = (last + 1).min(body.len());
    if from >= to {
        return ("416 Range Not Satisfiable", String::new(), Vec::new());
    }
    let header = format!("Content-Range: bytes {from}-{}/{}\r\n", to - 1, body.len());
    ("206 Partial Content", header, body[from..to].to_vec())
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = Vec::new();
    (reader.read_until(b'\n', &mut line).ok()? > 0).then_some(())?;
    // A client that speaks TLS to it.
    let line = String::from_utf8(line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut request =
        Request { method, path: path.to_owned(), query: query.to_owned(), ..Request::default() };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        request.headers.insert(name.to_lowercase(), value.to_owned());
    }
    let len = request.headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    request.body.resize(len, 0);
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

fn answer(request: &Request, objects: &Objects) -> (&'static str, String, Vec<u8>) {
    let mut objects = objects.lock().unwrap();
    let none = |status| (status, String::new(), Vec::new());
    let Some(key) = request.path.strip_prefix("/b").map(|key| key.trim_start_matches('/').to_owned()) else {
        return none("404 Not Found");
    };
    let tag = |version: u64| format!("\"{version}\"");
    let there = objects.get(&key).cloned();
    let wants = |name: &str| request.headers.get(name).map(String::as_str);
    match request.method.as_str() {
        "PUT" => {
            let is_met = match (wants("if-none-match"), wants("if-match")) {
                (Some(_), _) => there.is_none(),
                (_, Some(wanted)) => there.as_ref().is_some_and(|(version, _)| tag(*version) == wanted),
                _ => true,
            };
            if !is_met {
                return none("412 Precondition Failed");
            }
            let version = objects.values().map(|(version, _)| *version).max().unwrap_or(0) + 1;
            objects.insert(key, (version, request.body.clone()));
            ("200 OK", format!("ETag: {}\r\n", tag(version)), Vec::new())
        }
        "POST" => {
            let text = String::from_utf8_lossy(&request.body).into_owned();
            let keys = text.split("<Key>").skip(1).filter_map(|rest| Some(rest.split_once("</Key>")?.0));
            let deleted: String = keys
                .inspect(|key| drop(objects.remove(*key)))
                .map(|key| format!("<Deleted><Key>{key}</Key></Deleted>"))
                .collect();
            ("200 OK", String::new(), format!("<DeleteResult>{deleted}</DeleteResult>").into_bytes())
        }
        "DELETE" => {
            objects.remove(&key);
            none("204 No Content")
        }
        _ if request.query.contains("list-type=2") => {
            let prefix = request.query.split('&').find_map(|part| part.strip_prefix("prefix="));
            let prefix = prefix.unwrap_or_default().replace("%2F", "/");
            let after = request.query.split('&').find_map(|part| part.strip_prefix("start-after="));
            let after = after.unwrap_or_default().replace("%2F", "/");
            let mut xml = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
            for (key, (version, body)) in
                objects.iter().filter(|(key, _)| key.starts_with(&prefix) && **key > after)
            {
                let (tag, size) = (tag(*version), body.len());
                write!(xml, "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>{tag}</ETag><Size>{size}</Size></Contents>").unwrap();
            }
            ("200 OK", String::new(), (xml + "</ListBucketResult>").into_bytes())
        }
        _ => match there {
            None => none("404 Not Found"),
            Some((version, _)) if wants("if-none-match") == Some(&tag(version)) => none("304 Not Modified"),
            Some((version, body)) => {
                let (status, range, body) = part(request, body);
                (status, format!("{range}ETag: {}\r\n", tag(version)), body)
            }
        },
    }
}
