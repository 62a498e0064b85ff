//! Does the bucket keep conditional writes? Some servers take the headers and ignore them.
//!
//! A volume's safety rests on them alone, so that `format` and `mount` ask: objects with random names
//! below `probe/`, deleted afterwards. A listing has to show at once what was written, as the log's
//! end is found by one.

use bytes::Bytes;
use futures_util::future::join_all;
use object_store::PutPayload;
use serde::{Deserialize, Serialize};
use store::{Error, ErrorKind, Result};

use crate::bucket::{Bucket, Condition, Tag};

/// Requests of one race.
const RACERS: usize = 16;

/// What the probe found, of a bucket that passed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probed {
    /// Creates and replaces that raced for one object, of which one won.
    pub racers: u32,
    /// Whether a read of an unchanged version is answered by "not modified". If not, the lease's
    /// polls return its bytes, which is no harm.
    pub not_modified: bool,
}

/// Probes the bucket.
///
/// # Errors
/// [`ErrorKind::Unsupported`] with what the server did, if it does not keep conditional writes.
pub async fn probe(bucket: &Bucket) -> Result<Probed> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::with(ErrorKind::Io, "probe", format!("getrandom: {error}")))?;
    let dir = format!("probe/{:032x}", u128::from_ne_bytes(random));
    let probe = Probe { bucket, once: format!("{dir}/once"), race: format!("{dir}/race"), dir };
    let found = probe.run().await;
    let deleted = bucket.delete_many(&[&probe.once, &probe.race]).await;
    // What the probe found comes first; a bucket in which nothing may be deleted is no good either.
    let found = found?;
    deleted?;
    Ok(found)
}

struct Probe<'a> {
    bucket: &'a Bucket,
    dir: String,
    once: String,
    race: String,
}

fn payload(text: &str) -> PutPayload {
    Bytes::copy_from_slice(text.as_bytes()).into()
}

impl Probe<'_> {
    fn fails(&self, what: &str) -> Error {
        let detail = format!(
            "{}: the server does not keep conditional writes, without which two hosts would destroy a volume: {what}",
            self.bucket.url()
        );
        Error::with(ErrorKind::Unsupported, "probe", detail)
    }

    async fn run(&self) -> Result<Probed> {
        let first = self.create_twice().await?;
        let second = self.replace_twice(&first).await?;
        let not_modified = self.bucket.get_if_changed(&self.once, &second).await?.is_none();
        self.race_of_creates().await?;
        self.race_of_replaces(&second).await?;
        let mut names = self.bucket.list(&self.dir, None).await?;
        names.dedup();
        if names != ["once", "race"] {
            return Err(self.fails("a listing does not show what was just written"));
        }
        Ok(Probed { racers: u32::try_from(RACERS).unwrap_or(u32::MAX), not_modified })
    }

    /// Whether the object's bytes are `text`, in which version.
    async fn reads(&self, name: &str, text: &str) -> Result<Option<Tag>> {
        Ok(self.bucket.get(name).await?.filter(|(bytes, _)| bytes == text).map(|(_, tag)| tag))
    }

    /// The version, if the condition was met, which after a lost answer only a read tells.
    async fn met(&self, name: &str, text: &str, condition: Condition) -> Result<Option<Tag>> {
        match condition {
            Condition::Met(tag) => Ok(Some(tag)),
            Condition::Failed { after_unknown: false } => Ok(None),
            Condition::Failed { after_unknown: true } => self.reads(name, text).await,
        }
    }

    async fn create(&self, name: &str, text: &str) -> Result<Option<Tag>> {
        let condition = self.bucket.create(name, payload(text)).await?;
        self.met(name, text, condition).await
    }

    async fn replace(&self, name: &str, text: &str, tag: &Tag) -> Result<Option<Tag>> {
        let condition = self.bucket.replace(name, payload(text), tag).await?;
        self.met(name, text, condition).await
    }

    async fn create_twice(&self) -> Result<Tag> {
        let Some(first) = self.create(&self.once, "first").await? else {
            return Err(self.fails("a create (If-None-Match: *) of a new object failed"));
        };
        if self.create(&self.once, "second").await?.is_some() {
            return Err(self.fails("a second create (If-None-Match: *) of an object succeeded"));
        }
        if self.reads(&self.once, "first").await?.is_none() {
            return Err(self
                .fails("a create (If-None-Match: *) that failed changed the object, or it cannot be read"));
        }
        Ok(first)
    }

    async fn replace_twice(&self, first: &Tag) -> Result<Tag> {
        let Some(second) = self.replace(&self.once, "third", first).await? else {
            return Err(self.fails("a replace (If-Match) of the present version failed"));
        };
        if second == *first {
            return Err(self.fails("two versions of an object have the same ETag"));
        }
        if self.replace(&self.once, "fourth", first).await?.is_some() {
            return Err(self.fails("a replace (If-Match) of an older version succeeded"));
        }
        if self.replace(&format!("{}/none", self.dir), "fifth", first).await?.is_some() {
            self.bucket.delete(&format!("{}/none", self.dir)).await?;
            return Err(self.fails("a replace (If-Match) of an object that is not there succeeded"));
        }
        match self.reads(&self.once, "third").await? {
            Some(tag) if tag == second => Ok(second),
            Some(_) => Err(self.fails("a read and a write give the same version different ETags")),
            None => Err(self.fails("a replace (If-Match) that failed changed the object")),
        }
    }

    async fn race_of_creates(&self) -> Result<()> {
        let texts: Vec<_> = (0..RACERS).map(|racer| format!("create {racer}")).collect();
        let ended = join_all(texts.iter().map(|text| self.create(&self.race, text))).await;
        self.one_won("creates (If-None-Match: *)", &self.race, &texts, ended).await
    }

    async fn race_of_replaces(&self, tag: &Tag) -> Result<()> {
        let texts: Vec<_> = (0..RACERS).map(|racer| format!("replace {racer}")).collect();
        let ended = join_all(texts.iter().map(|text| self.replace(&self.once, text, tag))).await;
        self.one_won("replaces (If-Match)", &self.once, &texts, ended).await
    }

    async fn one_won(
        &self,
        what: &str,
        name: &str,
        texts: &[String],
        ended: Vec<Result<Option<Tag>>>,
    ) -> Result<()> {
        let mut won = Vec::new();
        for (text, ended) in texts.iter().zip(ended) {
            if ended?.is_some() {
                won.push(text);
            }
        }
        let [winner] = won[..] else {
            return Err(
                self.fails(&format!("of {RACERS} {what} of one object at a time {} succeeded", won.len()))
            );
        };
        match self.reads(name, winner).await? {
            Some(_) => Ok(()),
            None => {
                Err(self.fails(&format!("after {RACERS} {what} of one object the loser's bytes are there")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::open_bucket;
    use crate::scripted::{Fault, Scripted};

    #[tokio::test]
    async fn stores_that_keep_conditional_writes_pass_and_nothing_stays() {
        let parent = tempfile::tempdir().unwrap();
        for url in
            ["memory://probe-passes/a".to_owned(), format!("file://{}/volume", parent.path().display())]
        {
            let bucket = open_bucket(&url.parse().unwrap()).unwrap();
            let probed = probe(&bucket).await.unwrap();
            assert_eq!(probed, Probed { racers: 16, not_modified: true });
            assert!(bucket.list("", None).await.unwrap().is_empty(), "{url}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lost_answers_do_not_fail_the_probe() {
        for seed in 0..50 {
            let bucket = Scripted::new(seed).with(Fault::LostAnswer, 20).with(Fault::Server, 20).bucket();
            let found = probe(&bucket.with_patience(crate::bucket::Patience::UntilStopped)).await;
            assert!(found.is_ok(), "seed {seed}: {found:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_ignores_a_condition_is_refused_with_what_it_did() {
        for (fault, what) in [
            (Fault::IgnoresCreate, "a second create"),
            (Fault::IgnoresReplace, "a replace (If-Match) of an older version succeeded"),
            (Fault::RacyCreate, "of 16 creates"),
            (Fault::HidesListed, "a listing"),
        ] {
            let bucket = Scripted::new(1).with(fault, 100).bucket();
            let error = probe(&bucket).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.detail().unwrap().contains(what), "{error}");
        }
    }
}
