//! The volumes below a prefix: which there are, and how one is deleted.

use std::sync::Arc;

use store::{Error, ErrorKind, Result};

use crate::bucket::Bucket;
use crate::directory::remove_empty;
use crate::find_snapshot::list;
use crate::format;
use crate::lease::{Created, Held, Lease, Request, ThisHost};
use crate::open::open_shared;
use crate::parents::Parents;
use crate::url::Url;
use crate::wait::wait;

const OP: &str = "delete volume";
/// Objects that are listed at a time.
const PAGE: usize = 1_000;
/// The last two objects that are deleted, in this order: until then a deletion that ended early is
/// found and ended by the next one.
const LAST: [&str; 2] = [format::NAME, Lease::OBJECT];

/// The names of the volumes below a prefix, in order, behind `after`, at most `most`; and the name
/// behind which there may be more. A volume is what has an object `format`.
///
/// # Errors
/// The bucket's.
pub fn volumes(url: &str, after: Option<&str>, most: usize) -> Result<(Vec<String>, Option<String>)> {
    let url: Url = url.parse()?;
    if url.directory().is_some_and(|dir| !dir.exists()) {
        return Ok((Vec::new(), None));
    }
    let bucket = open_shared(&url)?;
    let runtime = crate::runtime::handle()?;
    wait(&runtime, async {
        let mut names = bucket.directories().await?;
        names.retain(|name| after.is_none_or(|after| name.as_str() > after));
        names.sort_unstable();
        let has_more = names.len() > most;
        names.truncate(most);
        let next = names.last().filter(|_| has_more).cloned();
        let mut volumes = Vec::new();
        for name in names {
            match bucket.get_up_to(&format!("{name}/{}", format::NAME), 0..1).await {
                Ok(_) => volumes.push(name),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok((volumes, next))
    })
}

/// The path of a volume that lies below this URL, at any depth, if there is one. All objects there
/// may have to be listed.
///
/// # Errors
/// The bucket's.
pub fn nested_volume(url: &str) -> Result<Option<String>> {
    let url: Url = url.parse()?;
    if url.directory().is_some_and(|dir| !dir.exists()) {
        return Ok(None);
    }
    let bucket = open_shared(&url)?;
    // A directory is listed in no order.
    let page = if url.directory().is_some() { usize::MAX } else { PAGE };
    wait(&crate::runtime::handle()?, nested(&bucket, page))
}

async fn nested(bucket: &Bucket, page: usize) -> Result<Option<String>> {
    let path = |name: &str| {
        let path = name.strip_suffix(format::NAME)?.strip_suffix('/')?;
        (!path.is_empty()).then(|| path.to_owned())
    };
    let found = bucket.find(page, |name| path(name).is_some()).await?;
    Ok(found.as_deref().and_then(path))
}

/// Deletes a volume with all of its objects. It is held meanwhile, so that nobody mounts it. One
/// whose deletion ended early is deleted to its end; where none is, nothing is done.
///
/// # Errors
/// `Busy`: a process holds it, it has snapshots, or a journal has some of its data; the words say
/// which. The bucket's.
pub fn delete_volume(url: &str) -> Result<()> {
    let url: Url = url.parse()?;
    if url.directory().is_some_and(|dir| !dir.exists()) {
        return Ok(());
    }
    let bucket = open_shared(&url)?;
    let runtime = crate::runtime::handle()?;
    let keep = runtime.clone();
    wait(&runtime, delete(&bucket, keep))?;
    if let Some(dir) = url.directory() {
        remove_empty(&dir);
    }
    Ok(())
}

async fn delete(bucket: &Bucket, runtime: tokio::runtime::Handle) -> Result<()> {
    match format::read(bucket).await {
        Ok(format) => {
            let held = hold(bucket).await?;
            let kept = runtime.spawn(Arc::clone(&held).keep());
            let deleted = async {
                let family = bucket.with_parents(Parents::new(&format.parents));
                if let Some(snapshot) = list(&family).await?.first() {
                    let why = format!(
                        "{}: it has snapshots, {} for one; delete them first",
                        bucket.url(),
                        snapshot.name.escape_debug()
                    );
                    return Err(Error::with(ErrorKind::Busy, OP, why));
                }
                // Where another process took over, it is that one's.
                delete_objects(bucket, async || held.validate().await).await
            };
            let deleted = deleted.await;
            kept.abort();
            if deleted.is_err() {
                // The error is the one that counts.
                let _released = held.release().await;
            }
            deleted
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // The end of an earlier deletion: nothing but the lease was left.
            let rest = bucket.some_names("", 16).await?;
            let is_rest = rest.iter().all(|name| name == Lease::OBJECT || name.starts_with("probe/"));
            if is_rest && !rest.is_empty() { bucket.delete_many(&rest).await } else { Ok(()) }
        }
        Err(error) => Err(error),
    }
}

/// Takes the volume; of a clone whose making was interrupted, or after a deletion that ended early,
/// the lease is made.
async fn hold(bucket: &Bucket) -> Result<Arc<Held>> {
    let request = Request { mountpoint: "deletion".into(), ..Request::default() };
    if !Lease::is_there(bucket).await? {
        let _there_by_now: Created = Lease::create_free(bucket).await?;
    }
    Ok(Arc::new(Lease::take(bucket, &request, Arc::new(ThisHost::new()?)).await?))
}

/// Deletes all objects of a volume, as long as it is `held`.
pub(crate) async fn delete_objects(bucket: &Bucket, held: impl AsyncFn() -> Result<()>) -> Result<()> {
    loop {
        let mut names = bucket.some_names("", PAGE).await?;
        names.retain(|name| !LAST.contains(&name.as_str()));
        if names.is_empty() {
            break;
        }
        held().await?;
        bucket.delete_many(&names).await?;
    }
    for name in LAST {
        bucket.delete(name).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use object_store::PutPayload;

    use super::*;
    use crate::format::Options;
    use crate::make::make;
    use crate::open::open_bucket;

    fn bucket(name: &str) -> Bucket {
        open_bucket(&format!("memory://delete-{name}/v").parse().unwrap()).unwrap()
    }

    async fn deleted(bucket: &Bucket) -> Result<()> {
        delete(bucket, tokio::runtime::Handle::current()).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_deleted_with_all_of_its_objects_wherever_an_earlier_deletion_ended() {
        let bucket = bucket("whole");
        deleted(&bucket).await.unwrap();
        make(&bucket, Options::default(), None).await.unwrap();
        for n in 0..PAGE + 10 {
            let _made = bucket.create(&format!("log/{n}"), PutPayload::from_static(b"x")).await.unwrap();
        }
        deleted(&bucket).await.unwrap();
        assert_eq!(bucket.list("", None).await.unwrap(), [""; 0]);
        // The lease alone is left; and then, the format alone.
        make(&bucket, Options::default(), None).await.unwrap();
        bucket.delete(format::NAME).await.unwrap();
        deleted(&bucket).await.unwrap();
        make(&bucket, Options::default(), None).await.unwrap();
        bucket.delete(Lease::OBJECT).await.unwrap();
        deleted(&bucket).await.unwrap();
        assert_eq!(bucket.list("", None).await.unwrap(), [""; 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_found_however_deep_it_lies() {
        let bucket = bucket("nested");
        make(&bucket, Options::default(), None).await.unwrap();
        let put = async |name: &str| {
            let _made = bucket.create(name, PutPayload::from_static(b"x")).await.unwrap();
        };
        for name in ["a/reformat", "format/x", "log/formats"] {
            put(name).await;
        }
        assert_eq!(nested(&bucket, 2).await.unwrap(), None);
        put("a/b/c/format").await;
        // Also where it is in a later page.
        for page in [1, 2, usize::MAX] {
            assert_eq!(nested(&bucket, page).await.unwrap().as_deref(), Some("a/b/c"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_volume_or_is_held_stays() {
        let bucket = bucket("held");
        let _made = bucket.create("theirs", PutPayload::from_static(b"x")).await.unwrap();
        deleted(&bucket).await.unwrap();
        assert_eq!(bucket.list("", None).await.unwrap(), ["theirs"]);
        bucket.delete("theirs").await.unwrap();
        make(&bucket, Options::default(), None).await.unwrap();
        let held = hold(&bucket).await.unwrap();
        let refused = deleted(&bucket).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        held.release().await.unwrap();
        deleted(&bucket).await.unwrap();
    }
}
