//! Every way to unmount, in every state of a volume: the table of docs/SEMANTICS.md, which is read
//! here. There is a test for each row; it looks each cell's text up in [`says::CELLS`], and runs
//! the check that stands there.

mod cell;
mod says;
mod table;
mod way;

use std::sync::OnceLock;

use rustix::mount::UnmountFlags;

use cell::{STATES, Setting, State};
use says::{AS_UMOUNT2, CELLS};
use table::Table;
use way::Way;

use crate::rig::{Rig, has, skipped};

/// The mount types that a row is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    /// The one that root has by default.
    Default,
    /// Only that for which the kernel waits.
    Fuseblk,
    /// Only the plain one.
    Fuse,
    /// Both, each as its own row of umount2(2) where the cell says so.
    Both,
}

const OF_FUSEBLK: &str = "umount2(2), `fuseblk` (as root)";
const OF_FUSE: &str = "umount2(2), `fuse`";

/// The rows, each with its test.
macro_rules! rows {
    ($($way:expr, on $kinds:ident, is $row:expr; #[$test:meta] fn $name:ident() {})*) => {
        const ROWS: &[&str] = &[$($row),*];
        $(
            #[$test]
            fn $name() {
                in_every_state($row, Kinds::$kinds, &$way);
            }
        )*
    };
}

rows! {
    Way::Verb(&[]), on Default, is "`watertight umount`";
    #[test]
    fn umount_in_every_state() {}

    Way::Verb(&["--lazy"]), on Default, is "`watertight umount --lazy`";
    #[test]
    fn umount_lazy_in_every_state() {}

    Way::Verb(&["--force"]), on Default, is "`watertight umount --force`";
    #[test]
    fn umount_force_in_every_state() {}

    Way::Umount8(&[]), on Default, is "`umount(8)`, where the helpers are installed";
    #[test]
    fn umount8_in_every_state() {}

    Way::Umount8(&["-l"]), on Default, is "`umount -l`, in the same way";
    #[test]
    fn umount8_lazy_in_every_state() {}

    Way::Umount8(&["-f"]), on Default, is "`umount -f`, in the same way";
    #[test]
    fn umount8_force_in_every_state() {}

    Way::Call(UnmountFlags::empty()), on Fuseblk, is OF_FUSEBLK;
    #[test]
    fn a_raw_umount2_in_every_state() {}

    Way::Call(UnmountFlags::empty()), on Fuse, is OF_FUSE;
    #[test]
    fn a_raw_umount2_of_plain_fuse_in_every_state() {}

    Way::Fusermount, on Both, is "`fusermount3 -u` (without root: the only way, and the mount is plain `fuse`)";
    #[test]
    fn fusermount3_in_every_state() {}

    Way::Call(UnmountFlags::DETACH), on Both, is "umount2(2) with `MNT_DETACH`";
    #[test]
    fn a_raw_umount2_with_mnt_detach_in_every_state() {}

    Way::Call(UnmountFlags::FORCE), on Both, is "umount2(2) with `MNT_FORCE`";
    #[test]
    fn a_raw_umount2_with_mnt_force_in_every_state() {}

    Way::Kill, on Default, is "mount process killed";
    #[test]
    fn a_killed_mount_process_in_every_state() {}
}

/// The type of a mount without options; none where nothing can be mounted.
fn default_kind() -> Option<&'static str> {
    static KIND: OnceLock<Option<&str>> = OnceLock::new();
    *KIND.get_or_init(|| {
        let mut rig = Rig::mounting()?;
        let _daemon = rig.mount("");
        Some(if rig.volume()["mount_type"] == "fuseblk" { "fuseblk" } else { "fuse" })
    })
}

#[expect(clippy::print_stdout, reason = "where one fails, which")]
fn in_every_state(row: &str, kinds: Kinds, way: &Way) {
    let Some(default) = default_kind() else { return };
    if !way.programs().iter().all(|program| has(program)) {
        return;
    }
    let kinds = match kinds {
        Kinds::Default => vec![default],
        Kinds::Fuse => vec!["fuse"],
        Kinds::Fuseblk | Kinds::Both if default == "fuse" => {
            skipped("fuseblk needs a loop device, and there is none");
            if kinds == Kinds::Both { vec!["fuse"] } else { Vec::new() }
        }
        Kinds::Fuseblk => vec!["fuseblk"],
        Kinds::Both => vec!["fuseblk", "fuse"],
    };
    let table = Table::of_contract();
    for kind in kinds {
        for state in STATES {
            let mut says = table.cell(row, state);
            if says == AS_UMOUNT2 {
                says = table.cell(if kind == "fuseblk" { OF_FUSEBLK } else { OF_FUSE }, state);
            }
            let (_, check) =
                CELLS.iter().find(|(words, _)| *words == says).expect("the table is looked at below");
            println!("{row}, {kind}, {state:?}: {says}");
            check(way, Setting { state, kind, in_namespace: way.is_of_mount8() });
        }
    }
}

/// A row without a test, a test without a row; a cell without a check, a check without a cell.
#[test]
fn the_table_says_what_is_tested_and_nothing_else() {
    let table = Table::of_contract();
    assert_eq!(table.states(), STATES.map(State::name), "the columns");
    assert_eq!(table.rows(), ROWS, "the rows");
    let said: Vec<&str> = ROWS.iter().flat_map(|row| STATES.map(|state| table.cell(row, state))).collect();
    for words in &said {
        let checks = CELLS.iter().filter(|(known, _)| known == words).count();
        let is_known = checks == 1 || *words == AS_UMOUNT2;
        assert!(is_known, "{checks} checks for a cell that says `{words}`");
    }
    for words in CELLS.iter().map(|(words, _)| *words).chain([AS_UMOUNT2]) {
        assert!(said.contains(&words), "no cell says `{words}`");
    }
    for row in [OF_FUSEBLK, OF_FUSE] {
        assert!(STATES.iter().all(|&state| table.cell(row, state) != AS_UMOUNT2), "{row} is meant by others");
    }
}
