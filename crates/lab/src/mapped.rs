//! A file that a client writes by its mapped memory, mmap(2) with MAP_SHARED.

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PAGE: usize = 4096;

/// The first pages of a file, mapped. The file has to be as long for as long as this is there: the
/// kernel ends a process that writes beyond its end.
#[derive(Debug)]
pub(crate) struct Mapped {
    memory: NonNull<u8>,
    pages: usize,
}

impl Mapped {
    /// Makes the file as long as that, and maps it.
    pub(crate) fn new(file: &File, pages: usize) -> io::Result<Self> {
        let length = pages * PAGE;
        file.set_len(length as u64)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses where: no memory of this process is replaced.
        let memory = unsafe { mmap(std::ptr::null_mut(), length, protection, flags, file, 0) }?;
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, pages })
    }

    /// Writes a byte of such a page, counted around. The page is clean before, or this is a store
    /// to memory and no more.
    pub(crate) fn touch(&self, page: usize) {
        let at = page % self.pages * PAGE;
        // SAFETY: `at` lies inside of the mapping, which is there until this is dropped and which
        // has no reference to it. Other writers of the same byte are other processes, or other
        // threads of this one by another mapping; the store is one byte and volatile.
        unsafe { self.memory.add(at).write_volatile(7) };
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and is not used any more.
        let _mapped_until_the_process_ends =
            unsafe { munmap(self.memory.as_ptr().cast(), self.pages * PAGE) };
    }
}

// SAFETY: a mapping is the process's, not a thread's.
unsafe impl Send for Mapped {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn what_is_written_to_memory_is_in_the_file() {
        let mut file = tempfile::tempfile().unwrap();
        let mapped = Mapped::new(&file, 3).unwrap();
        mapped.touch(1);
        mapped.touch(5);
        drop(mapped);
        let mut found = Vec::new();
        file.read_to_end(&mut found).unwrap();
        assert_eq!(found.len(), 3 * PAGE);
        let touched = |at: &usize| found[*at] != 0;
        assert_eq!((0..found.len()).filter(touched).collect::<Vec<_>>(), [PAGE, 2 * PAGE]);
    }
}
