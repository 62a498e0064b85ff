//! Requests on the wire: what a client sends through a proxy, counted by the heads of its HTTP/1.1
//! requests.
//!
//! Bodies are skipped by their lengths and not looked at, so that to count costs next to nothing
//! beside what is passed on. A connection that cannot be followed any more is counted as such: a
//! figure that lacks its requests would be false.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

use super::requests::Requests;

/// The longest head, and the longest line before a chunk.
const HEAD_MAX: usize = 64 << 10;
const CHUNK_LINE_MAX: usize = 4 << 10;
/// Parameters that make a GET of a bucket a listing.
const LISTINGS: [&str; 6] = ["list-type", "prefix", "delimiter", "uploads", "uploadId", "versions"];

/// Requests by kind, and bytes each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) gets: u64,
    pub(super) heads: u64,
    pub(super) puts: u64,
    /// Beginnings and ends of uploads in parts.
    pub(super) posts: u64,
    pub(super) lists: u64,
    pub(super) deletes: u64,
    /// With other methods.
    pub(super) others: u64,
    pub(super) bytes_up: u64,
    pub(super) bytes_down: u64,
    /// Connections that were not understood, whose requests are missing above.
    pub(super) lost: u64,
}

impl Sent {
    pub(super) const fn all(self) -> u64 {
        self.gets + self.heads + self.puts + self.posts + self.lists + self.deletes + self.others
    }

    /// Those that are billed as PUTs.
    pub(super) const fn all_puts(self) -> u64 {
        self.puts + self.posts
    }

    /// By the kinds in which a volume of ours counts.
    pub(super) const fn as_requests(self) -> Requests {
        Requests {
            gets: self.gets + self.heads,
            puts: self.all_puts() + self.others,
            lists: self.lists,
            deletes: self.deletes,
        }
    }
}

impl Sub for Sent {
    type Output = Self;

    /// What came since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            gets: self.gets.saturating_sub(earlier.gets),
            heads: self.heads.saturating_sub(earlier.heads),
            puts: self.puts.saturating_sub(earlier.puts),
            posts: self.posts.saturating_sub(earlier.posts),
            lists: self.lists.saturating_sub(earlier.lists),
            deletes: self.deletes.saturating_sub(earlier.deletes),
            others: self.others.saturating_sub(earlier.others),
            bytes_up: self.bytes_up.saturating_sub(earlier.bytes_up),
            bytes_down: self.bytes_down.saturating_sub(earlier.bytes_down),
            lost: self.lost.saturating_sub(earlier.lost),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Head,
    Put,
    Post,
    List,
    Delete,
    Other,
}

/// What all connections of a client have sent so far.
// ORDERING: Relaxed, all of it: figures, and nothing else is published with them. A client that has
// its answer has had its request counted: the proxy passed the request on after it was counted, and
// the reader of the figures learns of the answer by a channel of its own.
#[derive(Debug, Default)]
pub(super) struct Counts {
    kinds: [AtomicU64; 7],
    up: AtomicU64,
    down: AtomicU64,
    lost: AtomicU64,
}

impl Counts {
    pub(super) fn sent(&self) -> Sent {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let kind = |kind: Kind| read(&self.kinds[kind as usize]);
        Sent {
            gets: kind(Kind::Get),
            heads: kind(Kind::Head),
            puts: kind(Kind::Put),
            posts: kind(Kind::Post),
            lists: kind(Kind::List),
            deletes: kind(Kind::Delete),
            others: kind(Kind::Other),
            bytes_up: read(&self.up),
            bytes_down: read(&self.down),
            lost: read(&self.lost),
        }
    }

    pub(super) fn add_down(&self, bytes: usize) {
        self.down.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn add(&self, kind: Kind) {
        self.kinds[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Follows the requests of one connection.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    counts: &'a Counts,
    next: Next,
    /// The head, or the line before a chunk, as far as it has come.
    line: Vec<u8>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Head,
    /// So many bytes of a body.
    Body(u64),
    ChunkSize,
    /// So many bytes of a chunk and of the end of its line.
    Chunk(u64),
    /// Lines behind the last chunk, up to one that is empty.
    Trailer,
    /// Nothing that could be read.
    Lost,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(counts: &'a Counts) -> Self {
        Self { counts, next: Next::Head, line: Vec::new() }
    }

    /// Takes what the client has sent.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        self.counts.up.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        while !bytes.is_empty() {
            bytes = match self.next {
                Next::Lost => return,
                Next::Body(left) => self.skip(bytes, left, Next::Body, Next::Head),
                Next::Chunk(left) => self.skip(bytes, left, Next::Chunk, Next::ChunkSize),
                Next::Head | Next::ChunkSize | Next::Trailer => self.take_line(bytes),
            };
        }
    }

    /// Whether all that was sent is whole requests.
    pub(super) fn is_between_requests(&self) -> bool {
        self.next == Next::Head && self.line.is_empty()
    }

    fn skip<'b>(&mut self, bytes: &'b [u8], left: u64, more: fn(u64) -> Next, then: Next) -> &'b [u8] {
        let skipped = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let left = left - skipped as u64;
        self.next = if left == 0 { then } else { more(left) };
        &bytes[skipped..]
    }

    /// Adds up to the end of a line; at the end of what is read as a whole, reads it.
    fn take_line<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let end = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| at + 1);
        let (part, rest) = bytes.split_at(end);
        self.line.extend_from_slice(part);
        let longest = if self.next == Next::ChunkSize { CHUNK_LINE_MAX } else { HEAD_MAX };
        if self.line.len() > longest {
            self.lose();
        } else if part.ends_with(b"\n") {
            self.end_line();
        }
        rest
    }

    fn end_line(&mut self) {
        let last = last_line(&self.line);
        match self.next {
            // Empty lines between two requests mean nothing.
            Next::Head if self.line.len() == last.1 && last.0.is_empty() => self.line.clear(),
            Next::Head if last.0.is_empty() => {
                let head = std::mem::take(&mut self.line);
                match Head::parse(&head) {
                    Some(head) => {
                        self.counts.add(head.kind);
                        self.next = head.body;
                    }
                    None => self.lose(),
                }
            }
            Next::Trailer if last.0.is_empty() => {
                self.line.clear();
                self.next = Next::Head;
            }
            Next::ChunkSize => {
                let size = last.0.split(|byte| *byte == b';').next().and_then(|size| number(size, 16));
                self.next = match size {
                    Some(0) => Next::Trailer,
                    Some(size) => Next::Chunk(size.saturating_add(2)),
                    None => return self.lose(),
                };
                self.line.clear();
            }
            _ => {}
        }
    }

    fn lose(&mut self) {
        self.next = Next::Lost;
        self.line = Vec::new();
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// The last line of what ends with one, without its end, and how long it is with that.
fn last_line(lines: &[u8]) -> (&[u8], usize) {
    let whole = lines.strip_suffix(b"\n").unwrap_or(lines);
    let begin = whole.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = &whole[begin..];
    (line.strip_suffix(b"\r").unwrap_or(line), lines.len() - begin)
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let digits = std::str::from_utf8(digits).ok()?.trim();
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, radix).ok())?
}

/// What a head says.
struct Head {
    kind: Kind,
    body: Next,
}

impl Head {
    fn parse(head: &[u8]) -> Option<Self> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.lines();
        let mut request = lines.next()?.split(' ');
        let (method, target, version) = (request.next()?, request.next()?, request.next()?);
        if !version.starts_with("HTTP/1.") || request.next().is_some() {
            return None;
        }
        let mut body = Next::Head;
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            if name.eq_ignore_ascii_case("transfer-encoding") {
                // The last encoding is the one that says where the body ends.
                let last = value.rsplit(',').next()?.trim();
                body = last.eq_ignore_ascii_case("chunked").then_some(Next::ChunkSize)?;
            } else if name.eq_ignore_ascii_case("content-length") && body != Next::ChunkSize {
                let length = number(value.trim().as_bytes(), 10)?;
                body = if length == 0 { Next::Head } else { Next::Body(length) };
            }
        }
        Some(Self { kind: kind(method, target), body })
    }
}

fn kind(method: &str, target: &str) -> Kind {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let has = |wanted: &[&str]| {
        query.split('&').any(|part| wanted.contains(&part.split('=').next().unwrap_or_default()))
    };
    // A bucket without a key, and nothing of it asked for by name.
    let is_whole_bucket = || query.is_empty() && !path.trim_matches('/').contains('/');
    match method {
        "GET" if has(&LISTINGS) || is_whole_bucket() => Kind::List,
        "GET" => Kind::Get,
        "HEAD" => Kind::Head,
        "PUT" => Kind::Put,
        "POST" if has(&["delete"]) => Kind::Delete,
        "POST" => Kind::Post,
        "DELETE" => Kind::Delete,
        _ => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] =
        b"PUT /b/key HTTP/1.1\r\nHost: h\r\nContent-Length: 26\r\nExpect: 100-continue\r\n\r\n\
        GET /not/a HTTP/1.1\r\n\r\nabc\r\n\
        GET /b?list-type=2&prefix=a%2F HTTP/1.1\r\nhost: h\r\n\r\n\
        PUT /b/chunked HTTP/1.1\r\nTransfer-Encoding: aws-chunked, Chunked\r\ncontent-length: 3\r\n\r\n\
        1a;sign=x\r\nGET /not/b HTTP/1.1\r\n\r\nabc\r\n4\r\nabcd\r\n0\r\nx-amz-trailer: y\r\n\r\n\
        \r\nHEAD /b/key HTTP/1.1\r\n\r\n\
        GET /b/key?versionId=3 HTTP/1.1\nRange: bytes=0-5\n\n\
        POST /b/key?uploads HTTP/1.1\r\nContent-Length: 0\r\n\r\n\
        PUT /b/key?partNumber=1&uploadId=x HTTP/1.1\r\nContent-Length: 1\r\n\r\n.\
        POST /b?delete HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}\
        DELETE /b/key HTTP/1.1\r\n\r\n\
        GET /b/ HTTP/1.1\r\n\r\n\
        OPTIONS /b/ HTTP/1.1\r\n\r\n";

    fn expected() -> Sent {
        Sent {
            gets: 1,
            heads: 1,
            puts: 3,
            posts: 1,
            lists: 2,
            deletes: 2,
            others: 1,
            bytes_up: STREAM.len() as u64,
            ..Sent::default()
        }
    }

    #[test]
    fn every_request_of_a_connection_is_counted_however_it_is_cut() {
        for size in (1..=80).chain([STREAM.len()]) {
            let counts = Counts::default();
            let mut reader = Reader::new(&counts);
            STREAM.chunks(size).for_each(|part| reader.read(part));
            assert_eq!(counts.sent(), expected(), "in parts of {size}");
            assert_eq!((reader.next, reader.line.len()), (Next::Head, 0), "in parts of {size}");
        }
        let sent = expected();
        assert_eq!((sent.all(), sent.all_puts()), (11, 4));
        assert_eq!(sent.as_requests(), Requests { gets: 2, puts: 5, lists: 2, deletes: 2 });
        assert_eq!(sent - sent, Sent::default());
    }

    #[test]
    fn what_is_not_understood_is_counted_once_and_read_no_further() {
        let long = [b"GET /".as_slice(), &vec![b'a'; 2 * HEAD_MAX]].concat();
        let long_chunk = [
            b"PUT /a/b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n".as_slice(),
            &vec![b'1'; 2 * HEAD_MAX],
        ]
        .concat();
        for (bytes, before) in [
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), 0),
            (b"\x16\x03\x01\x02\n\r\n", 0),
            (b"PUT /a/b HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 0),
            (b"PUT /a/b HTTP/1.1\r\ncontent-length: 99999999999999999999\r\n\r\n", 0),
            (b"PUT /a/b HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 0),
            (b"PUT /a/b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n+1\r\n", 1),
            (b"GET /a b HTTP/1.1\r\n\r\n", 0),
            (&long, 0),
            (&long_chunk, 1),
        ] {
            let counts = Counts::default();
            let mut reader = Reader::new(&counts);
            bytes.chunks(1000).for_each(|part| reader.read(part));
            reader.read(b"\r\n\r\nGET /a/b HTTP/1.1\r\n\r\n");
            let sent = counts.sent();
            let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]);
            assert_eq!((sent.lost, sent.all()), (1, before), "{shown}");
        }
    }
}
