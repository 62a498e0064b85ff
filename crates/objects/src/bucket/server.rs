//! For tests: a server on 127.0.0.1 that answers by a script.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::aws;
use crate::bucket::Bucket;
use crate::problem::About;

/// What the server does with a request, after it has read the whole of it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reply {
    /// Status, further header lines, body.
    Answer(&'static str, &'static str, &'static str),
    /// As `Answer`, but the connection ends before the last byte.
    Cut(&'static str, &'static str, &'static str),
    /// The connection ends.
    Close,
    /// Nothing comes.
    Hang,
}

/// A put that succeeded.
pub(super) const PUT: Reply = Reply::Answer("200 OK", "ETag: \"new\"\r\n", "");

/// See the [module](self).
pub(super) struct Server {
    pub(super) bucket: Bucket,
    pub(super) endpoint: String,
    /// The heads of the requests, in lower case.
    pub(super) requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Answers the requests in turn, the last reply for all that follow.
    pub(super) async fn new(replies: &[Reply]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (replies, seen) = (replies.to_vec(), Arc::clone(&requests));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, replies.clone(), Arc::clone(&seen)));
            }
        });
        Self { bucket: bucket_at(&endpoint), endpoint, requests }
    }
}

pub(super) fn bucket_at(endpoint: &str) -> Bucket {
    let environment = |name: &str| match name {
        "AWS_ENDPOINT_URL" => Some(endpoint.to_owned()),
        "AWS_ACCESS_KEY_ID" => Some("key-id".to_owned()),
        "AWS_SECRET_ACCESS_KEY" => Some("very-secret".to_owned()),
        "AWS_SESSION_TOKEN" => Some("token-secret".to_owned()),
        _ => None,
    };
    let (store, credentials) = aws::open("b", &environment, crate::client::Clients::Own).unwrap();
    Bucket::opened(Arc::new(store), "v".into(), About { url: "s3://b/v".to_owned(), credentials })
}

/// One request a connection.
async fn serve(stream: TcpStream, replies: Vec<Reply>, requests: Arc<Mutex<Vec<String>>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    let turn = {
        let mut requests = requests.lock();
        requests.push(head);
        requests.len() - 1
    };
    let (status, headers, body, is_cut) = match *replies.get(turn).or(replies.last())? {
        Reply::Answer(status, headers, body) => (status, headers, body, false),
        Reply::Cut(status, headers, body) => (status, headers, body, true),
        Reply::Close => return None,
        Reply::Hang => return std::future::pending().await,
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    stream.write_all(&body.as_bytes()[..length - usize::from(is_cut)]).await.ok()?;
    stream.flush().await.ok()
}
