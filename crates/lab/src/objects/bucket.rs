//! The server that the experiment is given.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

/// A bucket on a server, or else in a directory.
#[derive(Debug)]
pub(super) struct Server {
    base: String,
    pub(super) endpoint: Option<String>,
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
            None => (format!("file://{}/bucket", scratch.display()), None),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let url = format!("{base}/server").parse()?;
        let bucket = {
            let _entered = runtime.enter();
            objects::open::open_bucket(&url)?
        };
        Ok(Self { base, endpoint, runtime, bucket, next: Cell::new(0) })
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
        let url = self.url(name).parse()?;
        let _entered = self.runtime.enter();
        let bucket = objects::open::open_bucket(&url)?;
        let mut bytes = 0;
        for dir in ["seg", "log", "meta"] {
            let listed = self.runtime.block_on(bucket.list_sizes(dir))?;
            bytes += listed.iter().map(|(_, len)| len).sum::<u64>();
        }
        Ok(bytes)
    }

    /// The bucket's own address, if there is a server.
    pub(super) fn bucket_url(&self) -> Option<String> {
        let name = self.base.strip_prefix("s3://")?.split('/').next()?;
        Some(format!("{}/{name}", self.endpoint.as_ref()?))
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
}
