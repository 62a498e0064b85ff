//! Extended attributes, and what access control lists do to permissions.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use bytes::Bytes;
use store::{ErrorKind, ObjectId, Result, SetXattr};

use crate::acl::{ACCESS, Acl, DEFAULT};
use crate::engine::Batch;
use crate::node::State;
use crate::rows::{self, InodeRow, Kind, xattr_key};
use crate::tree::{Tree, fail, now};
use crate::xattr_sizes::{NAMES_BYTES_MAX, XattrSizes};

const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 65536;

impl Tree {
    pub(crate) async fn get_xattr(self: &Arc<Self>, id: ObjectId, name: &OsStr) -> Result<Vec<u8>> {
        let op = "get xattr";
        let pin = self.pin_used(id.0, op)?;
        may_have(&pin.lock().await?.row, name, false, op)?;
        match self.engine.get(&xattr_key(id.0, name)).await? {
            Some(value) => Ok(value.to_vec()),
            None => fail(ErrorKind::NoAttribute, op),
        }
    }

    pub(crate) async fn list_xattr(self: &Arc<Self>, id: ObjectId) -> Result<Vec<u8>> {
        let _pin = self.pin_used(id.0, "list xattr")?;
        let rows = self.engine.scan(rows::keys_of(b'X', id.0), NAMES_BYTES_MAX).await?;
        Ok(rows.iter().flat_map(|(key, _)| rows::rest_of(key).iter().copied().chain([0])).collect())
    }

    pub(crate) async fn set_xattr(
        self: &Arc<Self>,
        id: ObjectId,
        name: &OsStr,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let op = "set xattr";
        if value.len() > VALUE_MAX {
            return fail(ErrorKind::TooBig, op);
        }
        let pin = self.pin_used(id.0, op)?;
        let mut state = pin.lock().await?;
        may_have(&state.row, name, true, op)?;
        let before = self.engine.get(&xattr_key(id.0, name)).await?;
        match (how, before.is_some()) {
            (SetXattr::Create, true) => return fail(ErrorKind::Exists, op),
            (SetXattr::Replace, false) => return fail(ErrorKind::NoAttribute, op),
            _ => {}
        }
        let mut sizes = self.xattr_sizes(id.0, &state).await?;
        if let Some(before) = before {
            sizes.remove(name, &before);
        }
        sizes.add(name, value);
        if sizes.are_too_large() {
            return fail(ErrorKind::NoSpace, op);
        }
        // Known again when the change is made; a list that is no more than a mode leaves no row.
        state.xattr_sizes = None;
        let mut batch = Batch::default();
        let acl = if is_acl(name) { Some(Acl::read(value)?) } else { None };
        match acl.filter(|_| name == ACCESS) {
            Some(acl) => {
                state.row.perm = state.row.perm & !0o777 | acl.mode();
                if acl.is_mode_alone() {
                    batch.delete(xattr_key(id.0, name));
                } else {
                    batch.put(xattr_key(id.0, name), Bytes::from(acl.to_bytes()));
                }
            }
            None => batch.put(xattr_key(id.0, name), Bytes::copy_from_slice(value)),
        }
        self.changed(id.0, &mut state, batch).await?;
        state.xattr_sizes = (!is_acl(name)).then_some(sizes);
        Ok(())
    }

    /// How large an inode's attributes are. The caller has the inode locked.
    async fn xattr_sizes(&self, ino: u64, state: &State) -> Result<XattrSizes> {
        if let Some(known) = state.xattr_sizes {
            return Ok(known);
        }
        let mut sizes = XattrSizes::default();
        for (key, value) in self.engine.scan(rows::keys_of(b'X', ino), NAMES_BYTES_MAX).await? {
            sizes.add(OsStr::from_bytes(rows::rest_of(&key)), &value);
        }
        Ok(sizes)
    }

    pub(crate) async fn remove_xattr(self: &Arc<Self>, id: ObjectId, name: &OsStr) -> Result<()> {
        let op = "remove xattr";
        let pin = self.pin_used(id.0, op)?;
        let mut state = pin.lock().await?;
        may_have(&state.row, name, true, op)?;
        if self.engine.get(&xattr_key(id.0, name)).await?.is_none() {
            return fail(ErrorKind::NoAttribute, op);
        }
        let mut batch = Batch::default();
        batch.delete(xattr_key(id.0, name));
        state.xattr_sizes = None;
        self.changed(id.0, &mut state, batch).await
    }

    async fn changed(&self, ino: u64, state: &mut State, mut batch: Batch) -> Result<()> {
        state.row.ctime = now();
        state.put(ino, &self.quotas, &mut batch);
        self.write(batch).await
    }

    /// What a new inode takes over of its directory's access control list. The umask counts only
    /// where the directory has no default.
    pub(crate) async fn inherit_acl(
        &self,
        (dir, ino): (u64, u64),
        row: &mut InodeRow,
        perm: u32,
        batch: &mut Batch,
    ) -> Result<()> {
        if row.kind == Kind::Symlink {
            return Ok(());
        }
        let Some(default) = self.engine.get(&xattr_key(dir, DEFAULT.as_ref())).await? else { return Ok(()) };
        let mut acl = Acl::read(&default)?;
        acl.restrict(perm);
        row.perm = row.perm & !0o777 | acl.mode();
        if !acl.is_mode_alone() {
            batch.put(xattr_key(ino, ACCESS.as_ref()), Bytes::from(acl.to_bytes()));
        }
        if row.is_dir() {
            batch.put(xattr_key(ino, DEFAULT.as_ref()), default);
        }
        Ok(())
    }

    /// What a change of the permissions does to an access control list.
    pub(crate) async fn chmod_acl(&self, ino: u64, perm: u32, batch: &mut Batch) -> Result<()> {
        let key = xattr_key(ino, ACCESS.as_ref());
        let Some(value) = self.engine.get(&key).await? else { return Ok(()) };
        let mut acl = Acl::read(&value)?;
        acl.chmod(perm);
        batch.put(key, Bytes::from(acl.to_bytes()));
        Ok(())
    }
}

fn is_acl(name: &OsStr) -> bool {
    name == ACCESS || name == DEFAULT
}

/// The kernel's rules of names, as far as they do not depend on the caller.
fn may_have(row: &InodeRow, name: &OsStr, is_change: bool, op: &'static str) -> Result<()> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > NAME_MAX {
        return fail(ErrorKind::Range, op);
    }
    if is_acl(name) {
        return match row.kind {
            Kind::Symlink => fail(ErrorKind::Unsupported, op),
            Kind::Directory => Ok(()),
            _ if name == DEFAULT && is_change => fail(ErrorKind::AccessDenied, op),
            _ => Ok(()),
        };
    }
    let known = [&b"user."[..], b"trusted.", b"security."];
    match known.iter().find(|prefix| bytes.starts_with(prefix)) {
        None => fail(ErrorKind::Unsupported, op),
        Some(prefix) if prefix.len() == bytes.len() => fail(ErrorKind::Invalid, op),
        Some(&b"user.") if !matches!(row.kind, Kind::Regular | Kind::Directory) => {
            fail(if is_change { ErrorKind::NotPermitted } else { ErrorKind::NoAttribute }, op)
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;
    use store::{Creator, FileType, NewNode};

    use super::*;
    use crate::bucket::Bucket;
    use crate::mount::{MountOptions, Mounted};

    #[tokio::test]
    async fn the_attributes_of_an_inode_are_bounded_in_all() {
        let bucket = Bucket::new(Arc::new(InMemory::new()), "v".into());
        let options = MountOptions::plain(4, [1; 16]);
        let mounted = Mounted::open(bucket, None, options).await.unwrap();
        let tree = mounted.tree();
        let what = NewNode::Special { kind: FileType::Regular, rdev: 0 };
        let creator = Creator { uid: 0, gid: 0, umask: 0 };
        let name = store::Name::new("f".as_ref()).unwrap();
        let file = tree.make(ObjectId::ROOT, name, what, 0o644, creator).await.unwrap().id;
        let set = async |name: &str, len: usize| {
            tree.set_xattr(file, name.as_ref(), &vec![7; len], SetXattr::Any).await.map_err(|e| e.kind())
        };
        assert_eq!(set("user.a", VALUE_MAX).await, Ok(()));
        assert_eq!(set("user.b", VALUE_MAX).await, Ok(()));
        assert_eq!(set("user.c", VALUE_MAX).await, Err(ErrorKind::NoSpace));
        assert_eq!(set("user.c", VALUE_MAX / 2).await, Ok(()));
        assert_eq!(set("user.c", VALUE_MAX).await, Err(ErrorKind::NoSpace), "in place of the smaller one");
        // What is replaced or removed makes room.
        assert_eq!(set("user.a", 1).await, Ok(()));
        assert_eq!(set("user.c", VALUE_MAX).await, Ok(()));
        tree.remove_xattr(file, "user.b".as_ref()).await.unwrap();
        assert_eq!(set("user.d", VALUE_MAX).await, Ok(()));
        let listed = tree.list_xattr(file).await.unwrap();
        assert_eq!(listed, b"user.a\0user.c\0user.d\0");
        mounted.close().await;
    }
}
