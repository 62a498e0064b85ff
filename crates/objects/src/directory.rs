//! A directory of this host as an object store: durable, and readable by its owner only.
//!
//! The crate's `LocalFileSystem` reads, lists and deletes. Puts are made here, because it knows no
//! conditional update, refuses the attributes that the engine adds, and creates files that everybody
//! can read:
//! - an object's bytes are written to a file beside it, `NAME#DIGITS`, which no list shows, and
//!   synced; then it gets its name, by `link` (which fails if the name is taken) or by `rename`; then
//!   the directory is synced;
//! - an update compares the version under an exclusive `flock` of the volume's `lock#0`. Only updates
//!   exclude one another: what is updated is neither overwritten nor deleted meanwhile;
//! - a directory goes with its last object, so that a put may have to make it again.
//!
//! A version is the inode's number, its size and its modification time. An inode's number is soon
//! used again, so that the microseconds of that time are random.
//!
//! A process that is killed leaves a `NAME#DIGITS`.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fmt, fs};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use rustix::fs::FlockOperation;
use store::{Error, ErrorKind, Result};

const STORE: &str = "directory";
/// How often a put makes directories that deletes remove.
const REMADE: u32 = 16;
/// How deep the directories of a volume's objects may lie, and more.
const DIRECTORIES_DEEP: u32 = 8;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Directory {
    inner: LocalFileSystem,
    /// The directory above the volume's, which has to be there.
    parent: PathBuf,
    /// The file that excludes other updates.
    lock: PathBuf,
    /// Keeps that file system mounted: in the empty mountpoint below, a put would begin anew.
    _pin: File,
}

impl Directory {
    /// The store in which `directory` is the returned path. The directory itself need not be there:
    /// the first put makes it.
    pub(crate) fn open(directory: &FilePath) -> Result<(Self, Path)> {
        let wrong = |detail: String| {
            Error::with(ErrorKind::Invalid, "open", format!("file://{}: {detail}", directory.display()))
        };
        let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
            return Err(wrong("the root directory holds no volume".to_owned()));
        };
        match fs::metadata(directory) {
            Ok(there) if !there.is_dir() => return Err(wrong("not a directory".to_owned())),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(wrong(error.to_string())),
            Ok(_) | Err(_) => {}
        }
        let inner = LocalFileSystem::new_with_prefix(parent)
            .map_err(|_| wrong(format!("there is no directory {}", parent.display())))?
            .with_automatic_cleanup(true)
            .with_fsync(true);
        let pin = File::open(directory).or_else(|_| File::open(parent));
        let pin = pin.map_err(|error| wrong(error.to_string()))?;
        let parent = fs::canonicalize(parent).map_err(|error| wrong(error.to_string()))?;
        let root = Path::parse(name.to_string_lossy()).map_err(|error| wrong(error.to_string()))?;
        let lock = parent.join(name).join("lock#0");
        Ok((Self { inner, parent, lock, _pin: pin }, root))
    }

    async fn make_parents(&self, location: &Path) -> StoreResult<()> {
        let (path, top) = (self.inner.path_to_filesystem(location)?, self.parent.clone());
        blocking(move || make_parents(&path, &top).map_err(failed(&path))).await
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Runs a put on a thread that may block.
async fn blocking<T: Send + 'static>(
    put: impl FnOnce() -> StoreResult<T> + Send + 'static,
) -> StoreResult<T> {
    tokio::task::spawn_blocking(put).await?
}

fn failed(path: &FilePath) -> impl Fn(io::Error) -> StoreError {
    let path = path.display().to_string();
    move |error| StoreError::Generic { store: STORE, source: Box::new(Failed { path: path.clone(), error }) }
}

/// A call to the file system that failed.
#[derive(Debug)]
struct Failed {
    path: String,
    error: io::Error,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.error)
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// As `LocalFileSystem` has it.
fn e_tag(file: &fs::Metadata) -> String {
    let since = file.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    format!("\"{:x}-{:x}-{:x}\"", file.ino(), since.unwrap_or_default().as_micros(), file.len())
}

fn random() -> StoreResult<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| failed(FilePath::new("getrandom"))(error.into()))?;
    Ok(u64::from_ne_bytes(bytes))
}

fn sync_directory(path: &FilePath) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes the directories above `path` and below `top` that are missing, durably.
fn make_parents(path: &FilePath, top: &FilePath) -> io::Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    if parent == top || parent.is_dir() {
        return Ok(());
    }
    make_parents(parent, top)?;
    match DirBuilder::new().mode(0o700).create(parent) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    parent.parent().map_or(Ok(()), sync_directory)
}

/// A file that has no name of its own yet; removed unless it gets one.
struct Staged {
    path: PathBuf,
    e_tag: String,
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After a rename there is none; after a failure the first error is the one to report.
        let _ = fs::remove_file(&self.path);
    }
}

impl Staged {
    /// Makes the file, beside the name that it is to get.
    fn open(path: &FilePath, top: &FilePath, random: u64) -> io::Result<(Self, File)> {
        let mut staged = path.as_os_str().to_owned();
        staged.push(format!("#{random}"));
        let staged = PathBuf::from(staged);
        let mut attempts = 0;
        loop {
            let file = make_parents(path, top)
                .and_then(|()| OpenOptions::new().write(true).create_new(true).mode(0o600).open(&staged));
            match file {
                Ok(file) => return Ok((Self { path: staged, e_tag: String::new() }, file)),
                // A delete removed the directory.
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempts < REMADE => attempts += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes and syncs the bytes.
    fn write(path: &FilePath, top: &FilePath, payload: &PutPayload) -> StoreResult<Self> {
        let random = random()?;
        let wrong = failed(path);
        let (mut this, mut file) = Self::open(path, top, random).map_err(&wrong)?;
        payload.iter().try_for_each(|bytes| file.write_all(bytes)).map_err(&wrong)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let version = Duration::new(now.as_secs(), 0) + Duration::from_micros(random % 1_000_000);
        file.set_modified(SystemTime::UNIX_EPOCH + version).map_err(&wrong)?;
        file.sync_all().map_err(&wrong)?;
        this.e_tag = e_tag(&file.metadata().map_err(&wrong)?);
        Ok(this)
    }

    /// Gives it a name that must be free.
    fn create(&self, path: &FilePath) -> io::Result<()> {
        fs::hard_link(&self.path, path)
    }

    /// Gives it a name, whoever has it.
    fn overwrite(&self, path: &FilePath) -> io::Result<()> {
        fs::rename(&self.path, path)
    }
}

/// Excludes other updates, of other processes too, until it is dropped.
fn take(lock: &FilePath) -> io::Result<File> {
    loop {
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock)?;
        rustix::io::retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))?;
        // Removed with its volume meanwhile: another file has the name, or none.
        if rustix::fs::fstat(&lock)?.st_nlink > 0 {
            return Ok(lock);
        }
    }
}

/// Removes what is left of a volume whose objects were deleted: its lock, and directories without
/// anything in them. What is not empty stays.
pub(crate) fn remove_empty(dir: &FilePath) {
    let path = dir.join("lock#0");
    if path.exists() {
        // Under the lock, so that nobody holds it who goes on.
        let locked = take(&path);
        let _was_there = fs::remove_file(&path);
        drop(locked);
    }
    remove_directories(dir, DIRECTORIES_DEEP);
}

fn remove_directories(dir: &FilePath, depth: u32) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        if depth > 0 {
            remove_directories(&entry.path(), depth - 1);
        }
    }
    let _not_empty = fs::remove_dir(dir);
}

fn put(
    path: &FilePath,
    top: &FilePath,
    lock: &FilePath,
    payload: &PutPayload,
    mode: PutMode,
) -> StoreResult<PutResult> {
    let wrong = failed(path);
    let staged = Staged::write(path, top, payload)?;
    match mode {
        PutMode::Overwrite => staged.overwrite(path).map_err(&wrong)?,
        PutMode::Create => match staged.create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let path = path.display().to_string();
                return Err(StoreError::AlreadyExists { path, source: Box::new(error) });
            }
            Err(error) => return Err(wrong(error)),
        },
        PutMode::Update(version) => {
            let _locked = take(lock).map_err(&wrong)?;
            let there = match fs::metadata(path) {
                Ok(there) => Some(e_tag(&there)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(wrong(error)),
            };
            if there.is_none() || there != version.e_tag {
                let source = if there.is_none() { "no such object" } else { "another version is there" };
                return Err(StoreError::Precondition {
                    path: path.display().to_string(),
                    source: source.into(),
                });
            }
            staged.overwrite(path).map_err(&wrong)?;
        }
    }
    path.parent().map_or(Ok(()), sync_directory).map_err(&wrong)?;
    Ok(PutResult { e_tag: Some(staged.e_tag.clone()), version: None, extensions: Default::default() })
}

#[async_trait]
impl ObjectStore for Directory {
    /// The attributes, which only the engine adds, to know its own put again after a lost answer, are
    /// left out: here no answer is lost.
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        let path = self.inner.path_to_filesystem(location)?;
        let (top, lock) = (self.parent.clone(), self.lock.clone());
        blocking(move || put(&path, &top, &lock, &payload, options.mode)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.make_parents(location).await?;
        let options = PutMultipartOptions { attributes: Default::default(), ..options };
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.make_parents(to).await?;
        self.inner.copy_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use crate::bucket::{Bucket, Condition};
    use crate::open::open_bucket;
    use object_store::PutPayload;

    fn open(directory: &std::path::Path) -> Bucket {
        open_bucket(&format!("file://{}", directory.display()).parse().unwrap()).unwrap()
    }

    fn bytes(text: &'static str) -> PutPayload {
        PutPayload::from_static(text.as_bytes())
    }

    #[tokio::test]
    async fn an_object_is_created_once_and_updated_by_its_version() {
        let parent = tempfile::tempdir().unwrap();
        let bucket = open(&parent.path().join("volume"));
        assert_eq!(bucket.get("a/b").await.unwrap(), None);
        let Condition::Met(first) = bucket.create("a/b", bytes("1")).await.unwrap() else { panic!() };
        assert!(matches!(
            bucket.create("a/b", bytes("2")).await.unwrap(),
            Condition::Failed { after_unknown: false }
        ));
        assert_eq!(bucket.get("a/b").await.unwrap().unwrap(), ("1".into(), first.clone()));
        let Condition::Met(second) = bucket.replace("a/b", bytes("2"), &first).await.unwrap() else {
            panic!()
        };
        assert!(matches!(
            bucket.replace("a/b", bytes("3"), &first).await.unwrap(),
            Condition::Failed { after_unknown: false }
        ));
        assert!(matches!(
            bucket.replace("a/c", bytes("3"), &first).await.unwrap(),
            Condition::Failed { after_unknown: false }
        ));
        assert_eq!(bucket.get("a/b").await.unwrap().unwrap(), ("2".into(), second.clone()));
        assert_eq!(bucket.get_if_changed("a/b", &second).await.unwrap(), None);
        assert_eq!(bucket.get_if_changed("a/b", &first).await.unwrap().unwrap().0, "2");
        // Neither the lock nor what an update leaves is an object.
        assert_eq!(bucket.list("", None).await.unwrap(), ["a/b"]);
    }

    #[tokio::test]
    async fn only_the_owner_reads() {
        let parent = tempfile::tempdir().unwrap();
        let root = parent.path().join("volume");
        let bucket = open(&root);
        let Condition::Met(tag) = bucket.create("a/b", bytes("1")).await.unwrap() else { panic!() };
        assert!(matches!(bucket.replace("a/b", bytes("2"), &tag).await.unwrap(), Condition::Met(_)));
        let mode = |path: &str| std::fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(""), mode("a"), mode("a/b"), mode("lock#0")], [0o700, 0o700, 0o600, 0o600]);
        let names = |path: &str| std::fs::read_dir(root.join(path)).unwrap().count();
        assert_eq!(names("a"), 1, "nothing is left of the update");
        bucket.delete("a/b").await.unwrap();
        assert_eq!(names(""), 1, "the lock");
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let refusal = |path: &std::path::Path| {
            let error = open_bucket(&format!("file://{}", path.display()).parse().unwrap()).unwrap_err();
            error.detail().unwrap().to_owned()
        };
        assert!(refusal(&parent.path().join("no/volume")).contains("there is no directory"));
        std::fs::write(parent.path().join("file"), "").unwrap();
        assert!(refusal(&parent.path().join("file")).contains("not a directory"));
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 1, "nothing is created");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_directory_that_deletes_remove_is_made_again() {
        let parent = tempfile::tempdir().unwrap();
        let bucket = open(&parent.path().join("volume"));
        let churns = (0..4).map(|churn| {
            let bucket = bucket.clone();
            tokio::spawn(async move {
                for _ in 0..50 {
                    let name = format!("a/b/{churn}");
                    assert!(matches!(bucket.create(&name, bytes("1")).await.unwrap(), Condition::Met(_)));
                    bucket.delete(&name).await.unwrap();
                }
            })
        });
        for churn in churns.collect::<Vec<_>>() {
            churn.await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn of_many_updates_of_a_version_one_wins() {
        let parent = tempfile::tempdir().unwrap();
        let bucket = open(&parent.path().join("volume"));
        let Condition::Met(mut tag) = bucket.create("x", bytes("0")).await.unwrap() else { panic!() };
        for _ in 0..10 {
            let tries = (0..8).map(|_| {
                let (bucket, tag) = (bucket.clone(), tag.clone());
                tokio::spawn(async move { bucket.replace("x", bytes("1"), &tag).await.unwrap() })
            });
            let mut won = Vec::new();
            for attempt in tries.collect::<Vec<_>>() {
                if let Condition::Met(tag) = attempt.await.unwrap() {
                    won.push(tag);
                }
            }
            assert_eq!(won.len(), 1);
            tag = won.remove(0);
        }
    }
}
