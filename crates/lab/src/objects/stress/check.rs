//! Compares a worker's directory with its model: exactly, or as it may be after a kill.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};

use super::model::{File, FileId, Image, Model, Node, Units};
use super::units::{UNIT, is_of, is_torn_of, stamp_of};

/// What a name leads to on the disk.
#[derive(Debug, Clone, Copy)]
enum Found {
    Dir,
    File { inode: u64, links: u64 },
}

/// All names below a directory.
fn walk(directory: &Path) -> anyhow::Result<BTreeMap<String, Found>> {
    let (mut names, mut left) = (BTreeMap::new(), vec![String::new()]);
    while let Some(below) = left.pop() {
        let place = directory.join(&below);
        for entry in fs::read_dir(&place).with_context(|| format!("{below}: cannot be listed"))? {
            let entry = entry?;
            let name = entry.file_name().into_string().map_err(|name| anyhow::anyhow!("{name:?}: odd"))?;
            let name = if below.is_empty() { name } else { format!("{below}/{name}") };
            let meta = entry.metadata().with_context(|| format!("{name}: cannot be examined"))?;
            let found = if meta.is_dir() {
                left.push(name.clone());
                Found::Dir
            } else {
                Found::File { inode: meta.ino(), links: meta.nlink() }
            };
            ensure!(names.insert(name.clone(), found).is_none(), "{name}: listed twice");
        }
    }
    Ok(names)
}

/// Everything is as the image has it, and nothing else is there.
///
/// # Errors
/// The first difference, or what cannot be read.
pub(super) fn exactly(directory: &Path, image: &Image) -> anyhow::Result<()> {
    let found = walk(directory)?;
    if let Some(extra) = found.keys().find(|name| !image.names.contains_key(*name)) {
        bail!("{extra}: is there, and was removed or never made");
    }
    let mut links: HashMap<FileId, u64> = HashMap::new();
    let ids =
        image.names.values().filter_map(|node| if let Node::File(id) = node { Some(*id) } else { None });
    ids.for_each(|id| *links.entry(id).or_default() += 1);
    let mut inodes: HashMap<FileId, u64> = HashMap::new();
    for (name, node) in &image.names {
        match (node, found.get(name)) {
            (_, None) => bail!("{name}: is missing"),
            (Node::Dir, Some(Found::Dir)) => {}
            (Node::File(id), Some(Found::File { inode, links: found })) => {
                ensure!(links[id] == *found, "{name}: {found} links in place of {}", links[id]);
                if let Some(other) = inodes.insert(*id, *inode) {
                    ensure!(other == *inode, "{name}: another file than its other name has");
                    continue;
                }
                let units = image.files.get(id).context("a file without content in the model")?;
                has_exactly(&directory.join(name), units).with_context(|| name.clone())?;
            }
            (node, Some(found)) => bail!("{name}: {found:?} in place of {node:?}"),
        }
    }
    Ok(())
}

fn has_exactly(file: &Path, units: &Units) -> anyhow::Result<()> {
    let bytes = fs::read(file)?;
    ensure!(bytes.len() == units.len() * UNIT, "{} bytes in place of {}", bytes.len(), units.len() * UNIT);
    for (place, (unit, stamp)) in bytes.chunks_exact(UNIT).zip(units).enumerate() {
        ensure!(
            is_of(unit, *stamp, place),
            "unit {place} is {:?} in place of {stamp:x}; it begins {:x?}",
            stamp_of(unit, place),
            &unit[..16]
        );
    }
    Ok(())
}

/// What was found after a kill.
#[derive(Debug, Default)]
pub(super) struct Survived {
    /// With units that are torn as holes.
    pub(super) image: Image,
    /// Files that have torn units, or a part of one at their end.
    pub(super) torn: Vec<String>,
}

/// Everything is as the model allows it after a kill.
///
/// # Errors
/// The first thing that was lost, or made up, or cannot be read.
pub(super) fn after_kill(directory: &Path, model: &Model) -> anyhow::Result<Survived> {
    let found = walk(directory)?;
    let mut survived = Survived::default();
    let mut by_inode: HashMap<u64, FileId> = HashMap::new();
    let known = model.names_ever();
    if let Some(extra) = found.keys().find(|name| !known.contains(*name)) {
        bail!("{extra}: is there after a kill, and was never made, or its removal was synced");
    }
    for name in known {
        let may_be = model.may_be(&name);
        match found.get(&name) {
            None => ensure!(may_be.contains(&None), "{name}: was synced, and is lost after a kill"),
            Some(Found::Dir) => {
                ensure!(may_be.contains(&Some(Node::Dir)), "{name}: a directory after a kill: {may_be:?}");
                survived.image.names.insert(name, Node::Dir);
            }
            Some(Found::File { inode, .. }) => {
                let new = by_inode.len() as FileId + 1;
                let id = *by_inode.entry(*inode).or_insert(new);
                let bytes = fs::read(directory.join(&name)).with_context(|| name.clone())?;
                let files = may_be.iter().filter_map(|node| match node {
                    Some(Node::File(id)) => model.files.get(id),
                    _ => None,
                });
                let tried: Vec<_> = files.map(|file| is_allowed(&bytes, file)).collect();
                let whys: Vec<String> = tried.iter().filter_map(|t| t.as_ref().err().cloned()).collect();
                let Some((units, is_torn)) = tried.into_iter().find_map(Result::ok) else {
                    bail!("{name}: after a kill it is none of {may_be:?}: {whys:?}");
                };
                if is_torn {
                    survived.torn.push(name.clone());
                }
                survived.image.files.insert(id, units);
                survived.image.names.insert(name, Node::File(id));
            }
        }
    }
    Ok(survived)
}

/// The units of a file that a kill may have left so, and whether some are torn; or why it may not.
fn is_allowed(bytes: &[u8], file: &File) -> Result<(Units, bool), String> {
    let (least, most) = file.lengths();
    if !(least..=most).contains(&bytes.len()) {
        return Err(format!("{} bytes in place of {least} to {most}", bytes.len()));
    }
    let mut is_torn = !bytes.len().is_multiple_of(UNIT);
    let mut units = Units::with_capacity(bytes.len() / UNIT);
    for (place, unit) in bytes.chunks(UNIT).enumerate() {
        let allowed = file.allowed(place);
        let whole = stamp_of(unit, place).filter(|_| unit.len() == UNIT);
        if let Some(stamp) = whole.filter(|stamp| allowed.contains(stamp)) {
            units.push(stamp);
            continue;
        }
        if !is_torn_of(unit, &allowed, place) {
            return Err(format!(
                "unit {place} is {whole:x?} in place of one of {allowed:x?}; it begins {:x?}",
                &unit[..unit.len().min(16)]
            ));
        }
        is_torn = true;
        units.push(0);
    }
    Ok((units, is_torn))
}

#[cfg(test)]
mod tests {
    use super::super::units::bytes_of;
    use super::*;

    /// A model with a synced file `a` (stamp 1), which `b` is another name of, and its files.
    fn rig() -> (tempfile::TempDir, Model) {
        let directory = tempfile::tempdir().unwrap();
        let mut model = Model::default();
        let id = model.new_file();
        model.file(id).begin_write(0, &[1; 20]);
        model.file(id).end_write(0, &[1; 20]);
        for name in ["a", "b"] {
            model.begin_name(name, Some(Node::File(id)));
            model.end_name(name, Some(Node::File(id)));
        }
        model.all_synced();
        fs::write(directory.path().join("a"), bytes_of(&[1; 20], 0)).unwrap();
        fs::hard_link(directory.path().join("a"), directory.path().join("b")).unwrap();
        (directory, model)
    }

    #[test]
    fn what_is_as_it_was_made_is_found_so() {
        let (directory, model) = rig();
        exactly(directory.path(), &model.image()).unwrap();
        let survived = after_kill(directory.path(), &model).unwrap();
        assert_eq!((survived.image.names.len(), survived.image.files.len()), (2, 1));
        assert_eq!(survived.torn, [] as [&str; 0]);
    }

    /// Each of these changes is seen, by both or by one of the checks.
    #[test]
    fn what_is_lost_or_made_up_is_seen() {
        type Damage = fn(&Path);
        let cases: [(Damage, &str, &str); 6] = [
            (|at| fs::remove_file(at.join("b")).unwrap(), "1 links", "b: was synced, and is lost"),
            (|at| fs::write(at.join("c"), "").unwrap(), "c: is there", "c: is there after a kill"),
            (|at| fs::write(at.join("a"), bytes_of(&[1; 19], 0)).unwrap(), "9576 bytes", "9576 bytes"),
            (|at| fs::write(at.join("a"), bytes_of(&[2; 20], 0)).unwrap(), "unit 0", "none of"),
            (|at| fs::write(at.join("a"), bytes_of(&[1; 20], 1)).unwrap(), "unit 0", "none of"),
            (
                |at| {
                    fs::remove_file(at.join("a")).unwrap();
                    fs::copy(at.join("b"), at.join("a")).unwrap();
                },
                "1 links",
                "",
            ),
        ];
        for (number, (damage, exact, killed)) in cases.into_iter().enumerate() {
            let (directory, model) = rig();
            damage(directory.path());
            let said = format!("{:#}", exactly(directory.path(), &model.image()).unwrap_err());
            assert!(said.contains(exact), "{number}: {said}");
            let said = after_kill(directory.path(), &model).map_err(|error| format!("{error:#}"));
            assert!(said.is_ok() == killed.is_empty(), "{number}: {said:?}");
            assert!(said.err().unwrap_or_default().contains(killed), "{number}");
        }
    }

    #[test]
    fn what_was_not_synced_may_be_there_in_part() {
        let (directory, mut model) = rig();
        let Some(Node::File(id)) = model.names.get("a").copied() else { panic!("no file") };
        model.file(id).begin_write(18, &[2; 4]);
        model.file(id).end_write(18, &[2; 4]);
        model.begin_name("new", Some(Node::Dir));
        let mut bytes = bytes_of(&[1; 20], 0);
        bytes.extend_from_slice(&bytes_of(&[2; 4], 18)[2 * UNIT..2 * UNIT + 100]);
        bytes[18 * UNIT..18 * UNIT + 8].copy_from_slice(&2_u64.to_le_bytes());
        fs::write(directory.path().join("a"), &bytes).unwrap();
        let survived = after_kill(directory.path(), &model).unwrap();
        assert_eq!((survived.torn.len(), survived.image.files[&1].len()), (2, 21));
        bytes[0] ^= 1;
        fs::write(directory.path().join("a"), &bytes).unwrap();
        assert!(after_kill(directory.path(), &model).is_err());
    }
}
