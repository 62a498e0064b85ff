//! A screen of `top`, as lines.

use std::cmp::Reverse;

use crossterm::event::KeyCode;

use super::rows::{CgroupRow, Table, VolumeRow};
use crate::control::api::{CgroupLimits, State};
use crate::term::shown::in_one_line;
use crate::term::{columns, units};

/// The key that rows are sorted by; numbers from the largest down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Sort {
    #[default]
    Dirty,
    Writeback,
    Into,
    Out,
    Waits,
    Stalled,
    Name,
}

impl Sort {
    const ALL: [Self; 7] =
        [Self::Dirty, Self::Writeback, Self::Into, Self::Out, Self::Waits, Self::Stalled, Self::Name];

    const fn name(self) -> &'static str {
        match self {
            Self::Dirty => "dirty",
            Self::Writeback => "writeback",
            Self::Into => "in",
            Self::Out => "to store",
            Self::Waits => "waiting",
            Self::Stalled => "stalled",
            Self::Name => "name",
        }
    }
}

/// The key that cgroups are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum CgroupSort {
    #[default]
    Dirty,
    Writeback,
    Inodes,
    Owed,
    Name,
}

impl CgroupSort {
    const ALL: [Self; 5] = [Self::Dirty, Self::Writeback, Self::Inodes, Self::Owed, Self::Name];

    const fn name(self) -> &'static str {
        match self {
            Self::Dirty => "dirty",
            Self::Writeback => "writeback",
            Self::Inodes => "inodes",
            Self::Owed => "owed",
            Self::Name => "name",
        }
    }
}

/// The one after `this`; after the last one the first.
fn next<T: Copy + PartialEq>(all: &[T], this: T) -> T {
    let here = all.iter().position(|sort| *sort == this).unwrap_or(0);
    all[(here + 1) % all.len()]
}

/// The choices of the person at the terminal.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    sort: Sort,
    cgroup_sort: CgroupSort,
    cgroups: bool,
    filter: String,
    typing: bool,
    /// The first row that is shown.
    top: usize,
}

impl View {
    /// Whether keys are letters of the filter now.
    pub(super) const fn is_typing(&self) -> bool {
        self.typing
    }

    /// Takes a key.
    pub(super) fn key(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter if self.typing => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace if self.typing => drop(self.filter.pop()),
            KeyCode::Char(c) if self.typing => self.filter.push(c),
            KeyCode::Char('s') if self.cgroups => self.cgroup_sort = next(&CgroupSort::ALL, self.cgroup_sort),
            KeyCode::Char('s') => self.sort = next(&Sort::ALL, self.sort),
            KeyCode::Char('c') => (self.cgroups, self.top) = (!self.cgroups, 0),
            KeyCode::Char('/') => (self.typing, self.top) = (true, 0),
            KeyCode::Down => self.top = self.top.saturating_add(1),
            KeyCode::Up => self.top = self.top.saturating_sub(1),
            KeyCode::PageDown => self.top = self.top.saturating_add(10),
            KeyCode::PageUp => self.top = self.top.saturating_sub(10),
            KeyCode::Home => self.top = 0,
            // The shown part ends with the last row.
            KeyCode::End => self.top = usize::MAX,
            _ => {}
        }
    }
}

/// The screen of `(columns, rows)`: a summary, a head, rows, and the keys.
pub(super) fn lines(table: &Table, view: &mut View, (columns, rows): (u16, u16)) -> Vec<String> {
    let (width, height) = (usize::from(columns), usize::from(rows));
    let mut lines = vec![summary(table)];
    lines.extend(silent(table, height / 4));
    let body = if view.cgroups { cgroups(table, view, width) } else { volumes(table, view, width) };
    let (head, body) =
        body.split_first().map_or((String::new(), &[][..]), |(head, body)| (head.clone(), body));
    lines.push(head);
    let room = height.saturating_sub(lines.len() + 1).max(1);
    view.top = view.top.min(body.len().saturating_sub(room));
    lines.extend(body.iter().skip(view.top).take(room).cloned());
    lines.truncate(height.saturating_sub(1));
    lines.resize(height.saturating_sub(1), String::new());
    lines.push(keys(view));
    // Names are shown already; this is for any other text.
    let shown = |line: String| columns::beginning(&in_one_line(&line), width).to_owned();
    lines.into_iter().map(shown).collect()
}

/// The mountpoints whose process does not answer, in so many lines at most, but in at least one.
fn silent(table: &Table, lines_max: usize) -> Vec<String> {
    let named =
        if table.silent.len() <= lines_max { table.silent.len() } else { lines_max.saturating_sub(1) };
    let mut lines: Vec<String> =
        table.silent.iter().take(named).map(|path| format!("{path}: its process does not answer")).collect();
    let others = table.silent.len() - named;
    if others > 0 {
        lines.push(format!("{}: no answer", units::count(others as u64, "process", "processes")));
    }
    lines
}

fn summary(table: &Table) -> String {
    let sum = |figure: fn(&VolumeRow) -> u64| units::bytes(table.volumes.iter().map(figure).sum());
    let stalled = table.volumes.iter().filter(|row| row.state == State::Stalled).count();
    format!(
        "watertight: {}, {stalled} stalled  unwritten {}  in {}/s  to store {}/s",
        units::count(table.volumes.len() as u64, "volume", "volumes"),
        sum(|row| row.dirty + row.writeback),
        sum(|row| row.into),
        sum(|row| row.out),
    )
}

fn keys(view: &View) -> String {
    if view.typing {
        return format!("filter: {}_  (Enter: keep, Esc: none)", view.filter);
    }
    let filter = if view.filter.is_empty() { String::new() } else { format!(" [{}]", view.filter) };
    let (sort, other) =
        if view.cgroups { (view.cgroup_sort.name(), "volumes") } else { (view.sort.name(), "cgroups") };
    format!("q quit  s sort [{sort}]  / filter{filter}  c {other}  arrows scroll")
}

fn volumes(table: &Table, view: &View, width: usize) -> Vec<String> {
    let mut rows: Vec<&VolumeRow> =
        table.volumes.iter().filter(|row| row.mountpoint.contains(&view.filter)).collect();
    rows.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    match view.sort {
        Sort::Dirty => rows.sort_by_key(|row| Reverse(row.dirty)),
        Sort::Writeback => rows.sort_by_key(|row| Reverse(row.writeback)),
        Sort::Into => rows.sort_by_key(|row| Reverse(row.into)),
        Sort::Out => rows.sort_by_key(|row| Reverse(row.out)),
        Sort::Waits => rows.sort_by_key(|row| Reverse(row.waits)),
        Sort::Stalled => rows.sort_by_key(|row| Reverse(row.stalled_ms)),
        Sort::Name => {}
    }
    // The columns behind the name take 64.
    let name = width.saturating_sub(64).max(8);
    let head = format!(
        "{:name$} {:8} {:>9} {:>9} {:>9} {:>9} {:>5} {:>7}",
        "MOUNTPOINT", "STATE", "DIRTY", "WRITEBACK", "IN/S", "STORE/S", "WAITS", "STALLED"
    );
    let line = |row: &&VolumeRow| {
        let stalled = match row.stalled_ms {
            0 if row.failing > 0 => "errors".to_owned(),
            0 => "-".to_owned(),
            1..1000 => format!("{} ms", row.stalled_ms),
            ms => format!("{} s", ms / 1000),
        };
        format!(
            "{} {:8} {:>9} {:>9} {:>9} {:>9} {:>5} {stalled:>7}",
            shortened(&row.mountpoint, name),
            row.state,
            units::bytes(row.dirty),
            units::bytes(row.writeback),
            units::bytes(row.into),
            units::bytes(row.out),
            row.waits,
        )
    };
    std::iter::once(head).chain(rows.iter().map(line)).collect()
}

/// A limit's name, and its figure where a cgroup has one.
type Limit = (&'static str, fn(&CgroupLimits) -> Option<String>);

/// In the order in which they are shown, as many as there is room for, of those that any cgroup
/// has.
const LIMITS: [Limit; 6] = [
    ("WBPS", |limits| limits.wbps.map(units::bytes)),
    ("OWED", |limits| Some(units::bytes(limits.owed_bytes))),
    ("RBPS", |limits| limits.rbps.map(units::bytes)),
    ("WIOPS", |limits| limits.wiops.map(|n| n.to_string())),
    ("RIOPS", |limits| limits.riops.map(|n| n.to_string())),
    ("DIRTYMAX", |limits| limits.dirty_bytes_max.map(units::bytes)),
];
/// The width of a limit, of the figures without any, and the least of two names.
const LIMIT_WIDTH: usize = 10;
const FIGURES_WIDTH: usize = 32;
const NAMES_WIDTH: usize = 16;

fn cgroups(table: &Table, view: &View, width: usize) -> Vec<String> {
    let fits = |row: &&CgroupRow| row.path.contains(&view.filter) || row.mountpoint.contains(&view.filter);
    let mut rows: Vec<&CgroupRow> = table.cgroups.iter().filter(fits).collect();
    rows.sort_by(|a, b| (&a.path, &a.mountpoint).cmp(&(&b.path, &b.mountpoint)));
    match view.cgroup_sort {
        CgroupSort::Dirty => rows.sort_by_key(|row| Reverse(row.dirty)),
        CgroupSort::Writeback => rows.sort_by_key(|row| Reverse(row.writeback)),
        CgroupSort::Inodes => rows.sort_by_key(|row| Reverse(row.inodes)),
        CgroupSort::Owed => {
            rows.sort_by_key(|row| Reverse(row.limits.as_ref().map_or(0, |limits| limits.owed_bytes)));
        }
        CgroupSort::Name => {}
    }
    let figure = |row: &CgroupRow, (_, figure): Limit| row.limits.as_ref().and_then(figure);
    let room = width.saturating_sub(FIGURES_WIDTH + NAMES_WIDTH) / LIMIT_WIDTH;
    let is_anybodys = |limit: &Limit| rows.iter().any(|row| figure(row, *limit).is_some());
    let limits: Vec<Limit> = LIMITS.into_iter().filter(is_anybodys).take(room).collect();
    let name = (width.saturating_sub(FIGURES_WIDTH + limits.len() * LIMIT_WIDTH) / 2).max(NAMES_WIDTH / 2);
    let mut head = format!(
        "{:name$} {:name$} {:>8} {:>9} {:>9}",
        "CGROUP", "MOUNTPOINT", "INODES", "DIRTY", "WRITEBACK"
    );
    head.extend(limits.iter().map(|(limit, _)| format!(" {limit:>9}")));
    let line = |row: &&CgroupRow| {
        let mut line = format!(
            "{} {} {:>8} {:>9} {:>9}",
            shortened(&row.path, name),
            shortened(&row.mountpoint, name),
            row.inodes,
            units::bytes(row.dirty),
            units::bytes(row.writeback),
        );
        let figures = limits.iter().map(|limit| figure(row, *limit).unwrap_or_else(|| "-".to_owned()));
        line.extend(figures.map(|figure| format!(" {figure:>9}")));
        line
    };
    std::iter::once(head).chain(rows.iter().map(line)).collect()
}

/// The end of a path tells more than its beginning. In so many columns, no more and no fewer.
fn shortened(path: &str, width: usize) -> String {
    if columns::width(path) <= width {
        return columns::padded(path, width);
    }
    columns::padded(&format!("…{}", columns::end(path, width.saturating_sub(1))), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mountpoint: &str, dirty: u64) -> VolumeRow {
        VolumeRow {
            mountpoint: mountpoint.to_owned(),
            state: State::Active,
            dirty,
            writeback: 0,
            into: 0,
            out: dirty * 2,
            waits: 0,
            stalled_ms: 0,
            failing: 0,
        }
    }

    fn table() -> Table {
        let mut hung = row("/mnt/hung", 1 << 20);
        (hung.state, hung.stalled_ms) = (State::Stalled, 61_000);
        let cgroup = |path: &str, dirty| CgroupRow {
            path: path.to_owned(),
            mountpoint: "/mnt/a".to_owned(),
            inodes: 3,
            dirty,
            writeback: 0,
            limits: None,
        };
        Table {
            volumes: vec![row("/mnt/a", 5 << 20), hung, row(&format!("/mnt/{}", "long".repeat(20)), 0)],
            cgroups: vec![cgroup("/tenant/1", 4096), cgroup("/tenant/2", 8192)],
            silent: Vec::new(),
        }
    }

    #[test]
    fn every_screen_fits() {
        for size in [(80, 24), (40, 5), (200, 60), (10, 2), (1, 1)] {
            for typing in [false, true] {
                let mut view = View { typing, ..View::default() };
                let lines = lines(&table(), &mut view, size);
                assert_eq!(lines.len(), usize::from(size.1), "{size:?}");
                let fits = |line: &String| columns::width(line) <= usize::from(size.0);
                assert!(lines.iter().all(fits), "{lines:?}");
            }
        }
    }

    /// Each of them takes two columns of the terminal.
    #[test]
    fn names_of_wide_letters_do_not_move_what_stands_behind_them() {
        let wide = "\u{6f22}\u{5b57}";
        let names = [format!("/{wide}"), format!("/x{}", wide.repeat(20)), format!("/{}", wide.repeat(20))];
        let (mut wide, mut plain) = (table(), table());
        wide.volumes = names.iter().map(|name| row(name, 1 << 20)).collect();
        plain.volumes = vec![row("/a", 1 << 20); names.len()];
        for columns in 72..=110 {
            let behind = |line: &String| columns::end(line, 63).to_owned();
            let shown = |table: &Table| lines(table, &mut View::default(), (columns, 24));
            let (wide, plain) = (shown(&wide), shown(&plain));
            for (wide, plain) in wide.iter().zip(&plain).skip(2).take(names.len()) {
                assert_eq!(columns::width(wide), columns::width(plain), "{wide}");
                assert_eq!(behind(wide), behind(plain), "{wide}");
            }
        }
        let mut view = View { cgroups: true, ..View::default() };
        wide.cgroups[0].path.clone_from(&names[2]);
        wide.cgroups[1].mountpoint.clone_from(&names[1]);
        for columns in [48, 79, 80, 81] {
            let shown = lines(&wide, &mut view, (columns, 24));
            assert_eq!(columns::width(&shown[2]), columns::width(&shown[3]), "{shown:?}");
            assert!(columns::width(&shown[2]) <= usize::from(columns), "{shown:?}");
        }
    }

    #[test]
    fn keys_sort_filter_and_change_what_is_shown() {
        let mut view = View::default();
        let first = |view: &mut View| lines(&table(), view, (80, 24))[2].clone();
        assert!(first(&mut view).starts_with("/mnt/a "));
        (0..5).for_each(|_| view.key(KeyCode::Char('s')));
        assert!(
            first(&mut view).starts_with("/mnt/hung ") && first(&mut view).ends_with("61 s"),
            "{}",
            first(&mut view)
        );
        view.key(KeyCode::Char('/'));
        "long".chars().for_each(|c| view.key(KeyCode::Char(c)));
        assert!(first(&mut view).starts_with('…'));
        view.key(KeyCode::Enter);
        assert!(lines(&table(), &mut view, (80, 24))[23].contains("filter [long]"));
        view.key(KeyCode::Esc);
        view.key(KeyCode::Char('c'));
        assert!(first(&mut view).starts_with("/tenant/2 "), "{}", first(&mut view));
    }

    #[test]
    fn limits_are_shown_where_there_are_any() {
        let mut view = View { cgroups: true, cgroup_sort: CgroupSort::Name, ..View::default() };
        let mut table = table();
        assert!(!lines(&table, &mut view, (80, 24))[1].contains("WBPS"));
        let mut limits = CgroupLimits {
            cgroup: "/tenant/1".into(),
            rbps: None,
            wbps: Some(1 << 20),
            riops: None,
            wiops: None,
            dirty_bytes_max: None,
            sync_isolation: false,
            owed_bytes: 3 << 20,
        };
        table.cgroups[0].limits = Some(limits.clone());
        let two = lines(&table, &mut view, (80, 24));
        assert!(two[1].ends_with("WBPS      OWED"), "{two:?}");
        assert!(two[2].ends_with("1.0 MiB   3.0 MiB") && two[3].ends_with("-         -"), "{two:?}");
        // All limits that any cgroup has, where there is room.
        (limits.rbps, limits.wiops, limits.riops) = (Some(2 << 20), Some(30), Some(40));
        limits.dirty_bytes_max = Some(5 << 20);
        table.cgroups[0].limits = Some(limits);
        let three = lines(&table, &mut view, (80, 24));
        assert!(three[1].ends_with("WBPS      OWED      RBPS"), "{three:?}");
        let all = lines(&table, &mut view, (120, 24));
        assert!(all[1].ends_with("WBPS      OWED      RBPS     WIOPS     RIOPS  DIRTYMAX"), "{all:?}");
        assert!(all[2].ends_with("1.0 MiB   3.0 MiB   2.0 MiB        30        40   5.0 MiB"), "{all:?}");
        // And by debt.
        let first = |view: &mut View| lines(&table, view, (80, 24))[2].clone();
        view.cgroup_sort = CgroupSort::Dirty;
        assert!(first(&mut view).starts_with("/tenant/2 "));
        (0..3).for_each(|_| view.key(KeyCode::Char('s')));
        assert!(first(&mut view).starts_with("/tenant/1 "));
        assert!(lines(&table, &mut view, (80, 24))[23].contains("s sort [owed]"));
    }

    #[test]
    fn many_silent_processes_leave_room_for_those_that_answer() {
        let mut table = table();
        let screen = |table: &Table| lines(table, &mut View::default(), (80, 24));
        table.silent = (0..6).map(|n| format!("/mnt/{n}")).collect();
        assert_eq!(screen(&table).iter().filter(|line| line.ends_with("does not answer")).count(), 6);
        table.silent = (0..100).map(|n| format!("/mnt/{n}")).collect();
        let lines = screen(&table);
        assert_eq!(lines.iter().filter(|line| line.ends_with("does not answer")).count(), 5);
        assert_eq!(lines[6], "95 processes: no answer");
        assert!(lines[7].starts_with("MOUNTPOINT") && lines[8].starts_with("/mnt/a "), "{lines:?}");
    }

    #[test]
    fn scrolling_ends_with_the_last_row() {
        let mut many = Table::default();
        (0..50).for_each(|n| many.volumes.push(row(&format!("/mnt/{n:02}"), 0)));
        let mut view = View { sort: Sort::Name, ..View::default() };
        (0..100).for_each(|_| view.key(KeyCode::Down));
        let lines = lines(&many, &mut view, (80, 24));
        assert!(lines[22].starts_with("/mnt/49"), "{lines:?}");
        for (key, first) in [(KeyCode::Home, "/mnt/00"), (KeyCode::End, "/mnt/29"), (KeyCode::Up, "/mnt/28")]
        {
            view.key(key);
            let lines = super::lines(&many, &mut view, (80, 24));
            assert!(lines[2].starts_with(first), "{key:?}: {lines:?}");
        }
    }
}
