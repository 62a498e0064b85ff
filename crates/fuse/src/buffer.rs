//! The memory that a reader reads requests into and assembles data in.
//!
//! Purpose: one mapping for each reading thread, of one page and [`MAX_WRITE`] bytes. A message is
//! read so that the data of a WRITE begins at the second page; a READ's message ends there, so that
//! the same memory takes the data of its reply. Pages that were never used cost no memory.
//!
//! Entries of the queues shared with the kernel (module `uring`) are such mappings too, with the
//! kernel's header at the beginning of the first page.

use std::fmt;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::protocol::abi::{InHeader, WriteIn};
use crate::protocol::init::MAX_WRITE;

/// Where the data begins: the second page (whatever the machine's page size is, 4096 divides it).
const DATA_AT: usize = 4096;
/// Where a message begins.
const MESSAGE_AT: usize = DATA_AT - size_of::<InHeader>() - size_of::<WriteIn>();
/// Length of the mapping.
const LEN: usize = DATA_AT + MAX_WRITE as usize;

/// A reader's memory.
pub(crate) struct Buffer(NonNull<u8>);

// SAFETY: the mapping belongs to this value alone; nothing of it is tied to a thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Maps one.
    pub(crate) fn new() -> rustix::io::Result<Self> {
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches no
        // other memory.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                LEN,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        NonNull::new(start.cast()).map(Self).ok_or(rustix::io::Errno::NOMEM)
    }

    /// Has all of its memory there, for as long as it lives.
    ///
    /// The kernel fails a request with EIO if it cannot put it where the server reads to. That is so
    /// when a page has to be made there, or copied after a fork, for a process that is being killed; into
    /// pages that are there it puts the request, which then waits for the next server.
    pub(crate) fn pin(&mut self) -> rustix::io::Result<()> {
        let memory = self.0.as_ptr().cast();
        // Huge pages are put together by copying: the small ones are not there meanwhile.
        for advice in [Advice::LinuxDontFork, Advice::LinuxNoHugepage] {
            // SAFETY: this is the whole mapping, and the advice changes no byte of it.
            match unsafe { rustix::mm::madvise(memory, LEN, advice) } {
                // A kernel without huge pages.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => return Err(error),
            }
        }
        // SAFETY: as above.
        unsafe { rustix::mm::madvise(memory, LEN, Advice::LinuxPopulateWrite) }?;
        // SAFETY: as above. Refused to a process that may lock no memory: pages that are not used for
        // long may go to the host's swap then.
        let _may_be_swapped = unsafe { rustix::mm::mlock(memory, LEN) };
        Ok(())
    }

    fn all(&self) -> &[u8] {
        // SAFETY: the mapping is LEN bytes long, readable, zeroed at first, lives as long as
        // `self`, and is changed only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), LEN) }
    }

    fn all_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `all`; `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), LEN) }
    }

    /// Where to read a message to.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.all_mut()[MESSAGE_AT..]
    }

    /// The message of `len` bytes that was read.
    pub(crate) fn message(&self, len: usize) -> &[u8] {
        &self.all()[MESSAGE_AT..MESSAGE_AT + len]
    }

    /// Room for data to send. Overlaps a message that is longer than a READ.
    pub(crate) fn data(&mut self) -> &mut [u8] {
        &mut self.all_mut()[DATA_AT..]
    }

    /// The bytes that no message touches.
    pub(crate) fn head(&mut self) -> &mut [u8] {
        &mut self.all_mut()[..MESSAGE_AT]
    }

    /// Gives the memory of the data back to the host; it is zero afterwards.
    pub(crate) fn release_data(&mut self) {
        self.release_from(DATA_AT);
    }

    /// Gives all of its memory back to the host; it is zero afterwards.
    pub(crate) fn release(&mut self) {
        self.release_from(0);
    }

    fn release_from(&mut self, at: usize) {
        let page = rustix::param::page_size();
        let from = at.next_multiple_of(page);
        let len = (LEN - from) / page * page;
        // SAFETY: the range is part of the mapping, page-aligned, and only reachable through
        // `self`, which is borrowed mutably: no reference into it lives.
        let done = unsafe {
            rustix::mm::madvise(self.0.as_ptr().add(from).cast(), len, rustix::mm::Advice::LinuxDontNeed)
        };
        debug_assert!(done.is_ok(), "madvise on a part of a mapping: {done:?}");
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping that `new` made, and no reference to it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), LEN) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping: {unmapped:?}");
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("bytes", &LEN).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::abi::ReadIn;

    #[test]
    fn data_of_a_write_is_aligned_and_a_read_ends_before_it() {
        let mut buffer = Buffer::new().unwrap();
        buffer.space()[80] = 7;
        assert_eq!(buffer.data()[0], 7);
        assert_eq!(buffer.data().as_ptr() as usize % 4096, 0);
        assert_eq!(buffer.data().len(), MAX_WRITE as usize);
        assert!(MESSAGE_AT + size_of::<InHeader>() + size_of::<ReadIn>() <= DATA_AT);
        // The kernel refuses shorter buffers.
        assert!(buffer.space().len() >= crate::protocol::abi::MIN_READ_BUFFER);
        assert_eq!(buffer.space().len(), MAX_WRITE as usize + size_of::<InHeader>() + size_of::<WriteIn>());
        assert_eq!(buffer.message(81)[80], 7);
    }

    #[test]
    fn a_pinned_buffer_has_all_its_pages() {
        let mut buffer = Buffer::new().unwrap();
        buffer.pin().unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        // Its advice makes it a mapping of its own.
        let at = format!("{:x}-", buffer.0.as_ptr() as usize);
        let mut of_it = maps.lines().skip_while(|line| !line.starts_with(&at));
        let rss = of_it.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        let kib: usize = rss.split_whitespace().next().unwrap().parse().unwrap();
        assert_eq!(kib << 10, LEN);
    }

    #[test]
    fn released_data_is_zero_and_the_rest_stays() {
        let mut buffer = Buffer::new().unwrap();
        buffer.head()[0] = 1;
        buffer.space()[0] = 2;
        buffer.data()[70_000] = 3;
        *buffer.data().last_mut().unwrap() = 4;
        buffer.release_data();
        assert_eq!((buffer.head()[0], buffer.space()[0]), (1, 2));
        assert!(buffer.data()[65_536..].iter().all(|&byte| byte == 0));
        buffer.release();
        assert_eq!((buffer.head()[0], buffer.space()[0]), (0, 0));
    }
}
