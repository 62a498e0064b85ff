//! Requests over a socket: lost answers, retries, what a status comes to mean.

use std::time::{Duration, Instant};

use object_store::PutPayload;
use store::ErrorKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::server::{PUT, Reply, Server, bucket_at};
use super::{Asked, Condition, Patience};

const SLOW_DOWN: Reply = Reply::Answer("503 Slow Down", "", "<Error><Code>SlowDown</Code></Error>");
const FAILED: Reply =
    Reply::Answer("412 Precondition Failed", "", "<Error><Code>PreconditionFailed</Code></Error>");
const CONFLICT: Reply =
    Reply::Answer("409 Conflict", "", "<Error><Code>ConditionalRequestConflict</Code></Error>");
const META: &str = "ETag: \"one\"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n";
const RANGE: &str =
    "ETag: \"one\"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nContent-Range: bytes 2-4/5\r\n";

fn bytes() -> PutPayload {
    PutPayload::from_static(b"bytes")
}

#[tokio::test]
async fn conditions_are_sent_and_met() {
    let server = Server::new(&[PUT]).await;
    let Condition::Met(tag) = server.bucket.create("a", bytes()).await.unwrap() else { panic!() };
    let Condition::Met(_) = server.bucket.replace("a", bytes(), &tag).await.unwrap() else { panic!() };
    let requests = server.requests.lock();
    assert!(requests[0].starts_with("put /b/v/a http/1.1"), "{}", requests[0]);
    assert!(requests[0].contains("\r\nif-none-match: *\r\n"), "{}", requests[0]);
    assert!(requests[1].contains("\r\nif-match: \"new\"\r\n"), "{}", requests[1]);
    assert_eq!(server.bucket.stats().bytes_up, 10);
}

#[tokio::test]
async fn a_store_that_is_busy_is_asked_again() {
    for busy in [SLOW_DOWN, CONFLICT, Reply::Answer("429 Too Many Requests", "", ""), Reply::Close] {
        let server = Server::new(&[busy, PUT]).await;
        assert!(matches!(server.bucket.create("a", bytes()).await.unwrap(), Condition::Met(_)), "{busy:?}");
        let stats = server.bucket.stats();
        assert_eq!((stats.put.requests, stats.put.failures, stats.put.retries), (2, 1, 1), "{busy:?}");
        assert_eq!((stats.under_way, stats.failing), (0, None));
        assert_eq!(server.requests.lock().len(), 2, "no layer below retries by itself");
    }
}

#[tokio::test]
async fn a_refusal_after_an_unknown_outcome_says_so() {
    for (first, after_unknown) in [
        (FAILED, false),
        (CONFLICT, false),
        (Reply::Answer("429 Too Many Requests", "", ""), false),
        (Reply::Close, true),
        (Reply::Answer("500 Internal Server Error", "", ""), true),
        (SLOW_DOWN, true),
    ] {
        let server = Server::new(&[first, FAILED]).await;
        assert_eq!(
            server.bucket.create("a", bytes()).await.unwrap(),
            Condition::Failed { after_unknown },
            "{first:?}"
        );
    }
    let server = Server::new(&[PUT, Reply::Close, FAILED]).await;
    let Condition::Met(tag) = server.bucket.create("a", bytes()).await.unwrap() else { panic!() };
    let replaced = server.bucket.replace("a", bytes(), &tag).await.unwrap();
    assert_eq!(replaced, Condition::Failed { after_unknown: true });
}

#[tokio::test]
async fn a_request_that_hangs_ends_with_stop_and_with_patience() {
    let server = Server::new(&[Reply::Hang]).await;
    let mounted = server.bucket.with_patience(Patience::UntilStopped);
    let hanging = tokio::spawn({
        let (one, other) = (mounted.clone(), mounted.bulk());
        async move { tokio::join!(one.create("a", bytes()), other.list("", None)) }
    });
    while server.requests.lock().len() < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(mounted.stats().under_way, 2);
    let impatient = server.bucket.with_patience(Patience::For(Duration::from_millis(50)));
    assert_eq!(impatient.get("a").await.unwrap_err().kind(), ErrorKind::TimedOut);
    let before = Instant::now();
    mounted.stop();
    let (put, listed) = hanging.await.unwrap();
    for error in [put.unwrap_err(), listed.unwrap_err(), impatient.get("a").await.unwrap_err()] {
        assert_eq!((error.kind(), error.detail()), (ErrorKind::Io, Some("the volume was given up")));
    }
    assert!(before.elapsed() < Duration::from_secs(5));
    assert_eq!(mounted.stats().under_way, 0);
    assert!(mounted.is_stopped());
}

#[tokio::test]
async fn an_object_that_is_missing_is_another_error_than_one_that_is_too_short() {
    let none = Reply::Answer("404 Not Found", "", "<Error><Code>NoSuchKey</Code></Error>");
    let range = |reply| async move {
        let server = Server::new(&[reply]).await;
        let result = server.bucket.get_range("a", 2..5).await;
        let sent = server.requests.lock().len();
        (result, sent)
    };
    let (got, _) = range(Reply::Answer("206 Partial Content", RANGE, "abc")).await;
    assert_eq!(got.unwrap(), "abc");
    let (missing, _) = range(none).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let short =
        "ETag: \"one\"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nContent-Range: bytes 2-3/4\r\n";
    for reply in [
        Reply::Answer("206 Partial Content", short, "ab"),
        Reply::Answer("206 Partial Content", RANGE, "ab"),
        Reply::Answer("206 Partial Content", RANGE, "abcd"),
        Reply::Answer("416 Requested Range Not Satisfiable", "", "<Error><Code>InvalidRange</Code></Error>"),
    ] {
        let (short, sent) = range(reply).await;
        let short = short.unwrap_err();
        assert_eq!((short.kind(), sent), (ErrorKind::Io, 1), "{reply:?}");
        assert!(short.detail().unwrap().contains("corrupted"), "{short}");
    }
    let server = Server::new(&[none]).await;
    assert_eq!(server.bucket.get("a").await.unwrap(), None);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_read_again() {
    let cut = Reply::Cut("206 Partial Content", RANGE, "abc");
    let server = Server::new(&[cut, Reply::Answer("206 Partial Content", RANGE, "abc")]).await;
    assert_eq!(server.bucket.get_range("a", 2..5).await.unwrap(), "abc");
    assert_eq!(server.bucket.stats().get.retries, 1);
}

#[tokio::test]
async fn what_has_come_before_a_body_breaks_off_is_passed_on_once() {
    let cut = Reply::Cut("206 Partial Content", RANGE, "abc");
    let server = Server::new(&[cut, cut, Reply::Answer("206 Partial Content", RANGE, "abc")]).await;
    let mut pieces = Vec::new();
    server.bucket.get_pieces("a", &Asked::UpTo(2..5), 1, |piece| pieces.push(piece)).await.unwrap();
    assert_eq!(pieces, ["a", "b", "c"]);
    assert_eq!(server.bucket.stats().get.retries, 2);
}

#[tokio::test]
async fn an_unchanged_object_is_not_read() {
    let server = Server::new(&[
        Reply::Answer("200 OK", META, "bytes"),
        Reply::Answer("304 Not Modified", "", ""),
        Reply::Answer("200 OK", META, "other"),
    ])
    .await;
    let (read, tag) = server.bucket.get("a").await.unwrap().unwrap();
    assert_eq!(read, "bytes");
    assert_eq!(server.bucket.get_if_changed("a", &tag).await.unwrap(), None);
    assert!(server.requests.lock()[1].contains("\r\nif-none-match: \"one\"\r\n"));
    assert_eq!(server.bucket.get_if_changed("a", &tag).await.unwrap().unwrap().0, "other");
    assert_eq!(server.bucket.get_at_most("a", 4).await.unwrap_err().kind(), ErrorKind::Io);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::new(&[PUT]).await;
    let location: &'static str = format!("Location: {}/b/v/a\r\n", elsewhere.endpoint).leak();
    for status in ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect"] {
        for header in [location, ""] {
            let server = Server::new(&[Reply::Answer(status, header, "")]).await;
            let error = server.bucket.create("a", bytes()).await.unwrap_err();
            assert!(error.detail().unwrap().contains("AWS_REGION"), "{error}");
        }
    }
    assert!(elsewhere.requests.lock().is_empty());
}

#[tokio::test]
async fn refusals_are_in_plain_words_without_secrets() {
    let body = |code: &str, more: &str| -> &'static str {
        format!(
            "<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>token-secret &lt;very-secret&gt;</Message>\
             {more}<StringToSign>x-amz-security-token:token-secret</StringToSign></Error>"
        )
        .leak()
    };
    for (status, body, kind, words) in [
        ("404 Not Found", body("NoSuchBucket", ""), ErrorKind::NoDevice, "no such bucket"),
        ("403 Forbidden", body("AccessDenied", ""), ErrorKind::AccessDenied, "access denied"),
        ("403 Forbidden", "", ErrorKind::AccessDenied, "access denied"),
        ("403 Forbidden", body("InvalidAccessKeyId", ""), ErrorKind::AccessDenied, "(InvalidAccessKeyId)"),
        (
            "403 Forbidden",
            body("SignatureDoesNotMatch", ""),
            ErrorKind::AccessDenied,
            "from AWS_ACCESS_KEY_ID",
        ),
        ("400 Bad Request", body("ExpiredToken", ""), ErrorKind::AccessDenied, "(ExpiredToken)"),
        ("401 Unauthorized", "", ErrorKind::AccessDenied, "does not accept the credentials"),
        ("403 Forbidden", body("RequestTimeTooSkewed", ""), ErrorKind::AccessDenied, "clock"),
        (
            "400 Bad Request",
            body("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>"),
            ErrorKind::Invalid,
            "AWS_REGION=eu-west-1",
        ),
        ("301 Moved", body("PermanentRedirect", ""), ErrorKind::Invalid, "another region"),
        (
            "501 Not Implemented",
            "<Error><Code>NotImplemented</Code><Message>a header &lt;x&gt;</Message></Error>",
            ErrorKind::Unsupported,
            "NotImplemented, a header <x>",
        ),
        ("507 Insufficient Storage", "", ErrorKind::NoSpace, "full"),
    ] {
        let server = Server::new(&[Reply::Answer(status, "", body)]).await;
        let results = [
            server.bucket.get("a").await.map(|_| ()),
            server.bucket.create("a", bytes()).await.map(|_| ()),
            server.bucket.list("", None).await.map(|_| ()),
        ];
        for error in results.map(Result::unwrap_err) {
            assert_eq!(error.kind(), kind, "{error}");
            let detail = error.detail().unwrap();
            assert!(detail.starts_with("s3://b/v") && detail.contains(words), "{detail}");
            assert!(!detail.contains("secret"), "{detail}");
            assert!(!detail.contains("StringToSign") && !detail.contains('\n'), "{detail}");
        }
        assert_eq!(server.requests.lock().len(), 3, "none is tried again: {words}");
    }
}

#[tokio::test]
async fn a_mounted_volume_waits_until_somebody_puts_it_right() {
    let denied = Reply::Answer("403 Forbidden", "", "<Error><Code>AccessDenied</Code></Error>");
    let bucket = Reply::Answer("404 Not Found", "", "<Error><Code>NoSuchBucket</Code></Error>");
    let server = Server::new(&[denied, bucket, Reply::Answer("200 OK", META, "bytes")]).await;
    let mounted = server.bucket.with_patience(Patience::UntilStopped);
    assert_eq!(mounted.get("a").await.unwrap().unwrap().0, "bytes");
    assert_eq!(mounted.stats().get.failures, 2);
}

#[tokio::test]
async fn what_is_no_s3_server_is_told_so() {
    let server = Server::new(&[Reply::Answer("200 OK", "", "<html>Log in</html>")]).await;
    let error = server.bucket.get("a").await.unwrap_err();
    assert!(error.detail().unwrap().contains("makes no sense"), "{error}");
    let error = server.bucket.create("a", bytes()).await.unwrap_err();
    assert!(error.detail().unwrap().contains("makes no sense"), "{error}");
}

#[tokio::test]
async fn https_to_a_server_without_tls_is_told_so() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; 16];
            stream.read_exact(&mut hello).await.unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            // The client closes.
            while stream.read(&mut hello).await.is_ok_and(|read| read > 0) {}
        }
    });
    let error = bucket_at(&endpoint).get("a").await.unwrap_err();
    assert!(error.detail().unwrap().contains("write http://"), "{error}");
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_given_up_soon() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let before = Instant::now();
    let error = bucket_at(&endpoint).get("a").await.unwrap_err();
    assert!(error.detail().unwrap().contains("no connection"), "{error}");
    assert!(before.elapsed() < Duration::from_secs(10));
}
