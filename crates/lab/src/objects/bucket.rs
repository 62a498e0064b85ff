//! The server that the experiment is given.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::runtime::Runtime;

use super::delay::{Delay, Line};
use crate::stats::Histogram;

/// Objects of the server's own that have a file's bytes, and how many are on their way at a time.
pub(super) const OBJECT: usize = 8 << 20;
pub(super) const TOGETHER: usize = 8;
/// The largest object of the server's own.
const OBJECT_MAX: u64 = 64 << 20;

/// A bucket on a server, or else in a directory.
#[derive(Debug)]
pub(super) struct Server {
    base: String,
    /// Where clients find it: at the proxy that may delay its answers.
    pub(super) endpoint: Option<String>,
    delay: Option<Delay>,
    runtime: Runtime,
    bucket: objects::bucket::Bucket,
    next: Cell<u64>,
}

impl Server {
    /// The bucket that `tests/servers run` names; without that, a directory in `scratch`.
    ///
    /// # Errors
    /// If the bucket cannot be opened.
    pub(super) fn new(scratch: &Path) -> anyhow::Result<Self> {
        let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (base, endpoint) = match given("WATERTIGHT_TEST_URL") {
            Some(bucket) => (format!("{bucket}/lab-{}", std::process::id()), given("AWS_ENDPOINT_URL")),
            None => {
                let directory = scratch.join("bucket");
                std::fs::create_dir_all(&directory)?;
                (format!("file://{}", directory.display()), None)
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let delay = endpoint.as_deref().map(Delay::before).transpose()?;
        let line = delay.as_ref().map(Delay::line).transpose()?;
        let endpoint = line.as_ref().map(Line::endpoint);
        let bucket = open(&format!("{base}/server"), endpoint.as_ref(), &runtime)?;
        Ok(Self { base, endpoint, delay, runtime, bucket, next: Cell::new(0) })
    }

    /// From now on each answer comes so much later, if there is a server.
    pub(super) fn delay(&self, by: Duration) {
        self.delay.iter().for_each(|delay| delay.set(by));
    }

    /// An address of the server for one client, whose requests are counted; none without a server.
    ///
    /// # Errors
    /// If no port is free.
    pub(super) fn line(&self) -> anyhow::Result<Option<Line>> {
        self.delay.as_ref().map(Delay::line).transpose()
    }

    /// As [`line`](Self::line), to another server that is as far away.
    ///
    /// # Errors
    /// If no port is free.
    pub(super) fn line_to(&self, server: SocketAddr) -> anyhow::Result<Option<Line>> {
        self.delay.as_ref().map(|delay| delay.line_to(server)).transpose()
    }

    /// For the notes.
    pub(super) fn shown(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("{} at {endpoint}", self.base),
            None if !self.base.starts_with("file:") => self.base.clone(),
            None => "a directory: `tests/servers run SERVER -- lab objects` gives a server".to_owned(),
        }
    }

    /// The URL of a new volume, or of a peer's directory.
    pub(super) fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.base)
    }

    /// Bytes of the objects of a volume.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub(super) fn bytes(&self, name: &str) -> anyhow::Result<u64> {
        let bucket = open(&self.url(name), self.endpoint.as_ref(), &self.runtime)?;
        let mut bytes = 0;
        for dir in ["seg", "log", "meta"] {
            let listed = self.runtime.block_on(bucket.list_sizes(dir, None))?;
            bytes += listed.iter().map(|(_, len)| len).sum::<u64>();
        }
        Ok(bytes)
    }

    /// Removes a volume, whatever it holds.
    ///
    /// # Errors
    /// If the server does not do it.
    pub(super) fn remove(&self, name: &str) -> anyhow::Result<()> {
        let bucket = open(&self.url(name), self.endpoint.as_ref(), &self.runtime)?;
        self.runtime.block_on(async {
            for dir in ["log", "seg", "meta", "reader", "clone"] {
                let names = bucket.list(dir, None).await?;
                let names: Vec<_> = names.iter().map(|name| format!("{dir}/{name}")).collect();
                bucket.delete_many(&names).await?;
            }
            for object in ["lease", "format"] {
                bucket.delete(object).await?;
            }
            Ok(())
        })
    }

    /// The bucket's name and the directory of this run in it, if there is a server.
    pub(super) fn bucket(&self) -> Option<(&str, &str)> {
        self.base.strip_prefix("s3://")?.split_once('/')
    }

    /// The objects below a peer's directory, as any other client finds them, with their bytes.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub(super) fn objects(&self, name: &str) -> anyhow::Result<Vec<(String, u64)>> {
        let bucket = open(&self.base, self.endpoint.as_ref(), &self.runtime)?;
        Ok(self.runtime.block_on(bucket.list_sizes(name, None))?)
    }

    /// Makes an object, if none has its name; how long that took.
    ///
    /// # Errors
    /// If the server does not do it.
    pub(super) fn put(&self, data: &[u8]) -> anyhow::Result<Duration> {
        let name = format!("object-{}", self.next.replace(self.next.get() + 1));
        let payload = data.to_vec().into();
        let begun = Instant::now();
        let made = self.runtime.block_on(self.bucket.create(&name, payload))?;
        let took = begun.elapsed();
        anyhow::ensure!(matches!(made, objects::bucket::Condition::Met(_)), "{name}: somebody else made it");
        Ok(took)
    }

    /// Makes objects, so many at a time; how long that took, and their names.
    ///
    /// # Errors
    /// If the server does not do it.
    pub(super) fn put_all(
        &self,
        parts: &[&[u8]],
        together: usize,
    ) -> anyhow::Result<(Duration, Vec<String>)> {
        let first = self.next.get();
        let named: Vec<_> = (first..).map(|number| format!("object-{number}")).zip(parts).collect();
        self.next.set(first + parts.len() as u64);
        let begun = Instant::now();
        let bulk = &self.bucket.bulk();
        let made = named.iter().map(|(name, part)| async move {
            let made = bulk.create(name, part.to_vec().into()).await?;
            anyhow::ensure!(
                matches!(made, objects::bucket::Condition::Met(_)),
                "{name}: somebody else made it"
            );
            Ok(())
        });
        let made = stream::iter(made).buffer_unordered(together).try_collect::<()>();
        self.runtime.block_on(made)?;
        Ok((begun.elapsed(), named.into_iter().map(|(name, _)| name).collect()))
    }

    /// Fetches objects, so many at a time; how long that took.
    ///
    /// # Errors
    /// If the server does not do it, or one is gone.
    pub(super) fn get_all(&self, names: &[String], together: usize) -> anyhow::Result<Duration> {
        let begun = Instant::now();
        let bulk = &self.bucket.bulk();
        let got = names.iter().map(|name| async move {
            let got = bulk.get_at_most(name, OBJECT_MAX).await?;
            anyhow::ensure!(got.is_some(), "{name} is gone");
            Ok(())
        });
        self.runtime.block_on(stream::iter(got).buffer_unordered(together).try_collect::<()>())?;
        Ok(begun.elapsed())
    }

    /// Small objects, one after the other, while a client of its own sends large ones, so many at a
    /// time; what each small one took.
    ///
    /// # Errors
    /// If the server does not do it.
    pub(super) fn puts_beside(
        &self,
        (large, number, together): (&[u8], usize, usize),
    ) -> anyhow::Result<Histogram> {
        let (base, endpoint) = (&self.base, self.endpoint.as_ref());
        let first = self.next.get();
        self.next.set(first + number as u64);
        thread::scope(|scope| {
            let neighbour = scope.spawn(move || -> anyhow::Result<()> {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                let bulk = &open(&format!("{base}/server"), endpoint, &runtime)?.bulk();
                let made = (first..first + number as u64).map(|number| async move {
                    bulk.create(&format!("object-{number}"), large.to_vec().into()).await.map(|_made| ())
                });
                let made = stream::iter(made).buffer_unordered(together).try_collect::<()>();
                Ok(runtime.block_on(made)?)
            });
            let mut took = Histogram::default();
            while !neighbour.is_finished() {
                took.add(self.put(&[7; 4096])?);
            }
            neighbour.join().expect("it does not panic")?;
            Ok(took)
        })
    }
}

/// The bucket of a URL, by way of this endpoint.
fn open(url: &str, endpoint: Option<&String>, runtime: &Runtime) -> anyhow::Result<objects::bucket::Bucket> {
    let _entered = runtime.enter();
    let environment = |name: &str| match name {
        "AWS_ENDPOINT_URL" => endpoint.cloned(),
        _ => std::env::var(name).ok(),
    };
    Ok(objects::open::open_bucket_in(&url.parse()?, &environment)?)
}
