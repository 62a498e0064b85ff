//! Open directories.

use rustix::io::Errno;

use super::context::{RequestContext, handle_id};
use super::names::Taken;
use crate::protocol::abi::{EntryOut, FOpen, FSyncIn, OpenOut, ReadIn, ReleaseIn};
use crate::protocol::encode::Listing;
use crate::reply::{Reply, Sent};
use crate::tree::Open;

/// The kernel may remember listings: it drops them itself when a name is made or removed, and only
/// this kernel changes the store. Not those whose places are the opening's own: the kernel gives what it
/// remembers to any opening, looks in it for the place that this one was told, and asks it for the rest
/// when it drops it.
pub(super) fn open(cx: &RequestContext<'_>, reply: Reply<'_>) -> Sent {
    let open = || match cx.once.opened() {
        Some(open) => Ok(handle_id(open.handle)),
        None => {
            let opened = cx.volume().open_dir(&cx.ctx(), cx.node());
            opened.map_err(|error| crate::protocol::errno::of(&error))
        }
    };
    cx.open_with(reply, Open::Directory, open, |reply, handle, pin| {
        cx.opened(Open::Directory, handle, pin);
        let may_be_kept = FOpen::CACHE_DIR | FOpen::KEEP_CACHE;
        let is_kept = !cx.is_shared() && cx.is_alone() && cx.volume().shares_places(handle);
        let open_flags = if is_kept { may_be_kept } else { FOpen::empty() }.bits();
        let sent = reply.value(&OpenOut { fh: handle.0, open_flags, backing_id: 0 });
        if !sent.is_delivered {
            cx.volume().release_dir(handle);
            cx.released(Open::Directory, handle);
        }
        sent
    })
}

pub(super) fn release(cx: &RequestContext<'_>, reply: Reply<'_>, arg: &ReleaseIn) -> Sent {
    if cx.without_store {
        cx.volume().release_dir_later(handle_id(arg.fh));
    } else {
        cx.volume().release_dir(handle_id(arg.fh));
    }
    cx.released(Open::Directory, handle_id(arg.fh));
    reply.done()
}

pub(super) fn fsync(cx: &RequestContext<'_>, reply: Reply<'_>, arg: FSyncIn) -> Sent {
    (cx.before_wait)();
    reply.unit(cx.volume().sync_dir(handle_id(arg.fh)))
}

pub(super) fn read(cx: &RequestContext<'_>, reply: Reply<'_>, arg: &ReadIn, space: &mut [u8]) -> Sent {
    let Some(space) = usize::try_from(arg.size).ok().and_then(|size| space.get_mut(..size)) else {
        return reply.error(Errno::INVAL);
    };
    let mut room = EntryRoom::of(cx, arg);
    let mut listing = Listing::new(space);
    let listed = cx.volume().list(handle_id(arg.fh), arg.offset, &mut |entry| {
        room.take(&entry) && listing.add(&cx.listed(entry))
    });
    let len = listing.len();
    match listed {
        // Entries listed before the error are returned; the error comes again at the next reading.
        Err(error) if len == 0 => reply.error(crate::protocol::errno::of(&error)),
        _ => reply.data(&space[..len]),
    }
}

/// The smallest buffer of a kernel's request; a program's may be smaller.
const SMALLEST: u32 = 4096;
/// The smallest buffer of a program that reads directories: musl's.
const SMALLEST_OF_PROGRAMS: usize = 2048;

/// Room for entries in the buffer of the program that reads the directory, which the request does not
/// say: a server that follows continues a listing behind the last entry of an answer, so that the
/// program has to take all of it.
struct EntryRoom(usize);

impl EntryRoom {
    fn of(cx: &RequestContext<'_>, arg: &ReadIn) -> Self {
        let is_small = arg.size <= SMALLEST && cx.volume().continues_listings();
        Self(if is_small { SMALLEST_OF_PROGRAMS } else { usize::MAX })
    }

    /// Takes room for an entry, as a `linux_dirent64` has it, if there is some.
    fn take(&mut self, entry: &store::DirEntry) -> bool {
        let len = (entry.name.len() + 20).next_multiple_of(8);
        match self.0.checked_sub(len) {
            Some(rest) => self.0 = rest,
            None => return false,
        }
        true
    }
}

/// Looks up each entry on the way, `.` and `..` excepted. An entry that cannot be looked up is
/// listed without attributes. The look-ups happen after the listing: a volume may hold its
/// directory while it lists.
pub(super) fn read_plus(
    cx: &RequestContext<'_>,
    reply: Reply<'_>,
    arg: &ReadIn,
    space: &mut [u8],
    entries: &mut Vec<store::DirEntry>,
) -> Sent {
    let Some(space) = usize::try_from(arg.size).ok().and_then(|size| space.get_mut(..size)) else {
        return reply.error(Errno::INVAL);
    };
    entries.clear();
    let mut room = EntryRoom::of(cx, arg);
    let mut left = space.len();
    let listed = cx.volume().list(handle_id(arg.fh), arg.offset, &mut |entry| match left
        .checked_sub(Listing::plus_len(&entry.name))
    {
        Some(rest) if room.take(&entry) => {
            left = rest;
            entries.push(cx.listed(entry));
            true
        }
        _ => false,
    });
    if let Err(error) = listed
        && entries.is_empty()
    {
        return reply.error(crate::protocol::errno::of(&error));
    }
    let mut listing = Listing::new(space);
    let mut handed_out = HandedOut { entries: Vec::with_capacity(entries.len()) };
    for entry in entries.iter() {
        let (found, taken) = look_up(cx, entry);
        handed_out.entries.extend(taken);
        let fits = listing.add_plus(entry, &found);
        debug_assert!(fits, "the length of each entry was counted");
    }
    let len = listing.len();
    let sent = reply.data(&space[..len]);
    if sent.is_delivered {
        handed_out.entries.clear();
    }
    sent
}

fn look_up<'a>(cx: &'a RequestContext<'_>, entry: &store::DirEntry) -> (EntryOut, Option<Taken<'a>>) {
    if entry.name == "." || entry.name == ".." || cx.is_gone() {
        return Default::default();
    }
    match super::names::find(cx, &entry.name) {
        Ok((found, taken)) => (found, Some(taken)),
        Err(_) => Default::default(),
    }
}

/// Look-ups of a listing that the kernel has not taken: given back when dropped, by a panic too.
struct HandedOut<'a> {
    entries: Vec<Taken<'a>>,
}

impl Drop for HandedOut<'_> {
    fn drop(&mut self) {
        self.entries.drain(..).for_each(Taken::give_back);
    }
}
