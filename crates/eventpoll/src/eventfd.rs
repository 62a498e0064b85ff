//! A number behind a file descriptor that is readable while it is not 0: eventfd(2). Models have no
//! system calls; there a lock stands in for the kernel's.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use real::EventFd;

#[cfg(any(loom, shuttle))]
pub(crate) use model::EventFd;

#[cfg(not(any(loom, shuttle)))]
mod real {
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, eventfd};

    pub(crate) struct EventFd(pub(crate) OwnedFd);

    impl EventFd {
        pub(crate) fn new() -> std::io::Result<Self> {
            Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        }

        /// Makes it readable.
        pub(crate) fn write(&self) {
            // It fails only where the number is as large as it can be, and then it is readable.
            let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
        }

        /// Makes it unreadable.
        pub(crate) fn read(&self) {
            // Nothing there: another thread has read it.
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }
}

#[cfg(any(loom, shuttle))]
mod model {
    use sync::Mutex;

    #[derive(Default)]
    pub(crate) struct EventFd(Mutex<u64>);

    impl EventFd {
        pub(crate) fn new() -> std::io::Result<Self> {
            Ok(Self::default())
        }

        pub(crate) fn write(&self) {
            *self.0.lock() += 1;
        }

        pub(crate) fn read(&self) {
            *self.0.lock() = 0;
        }

        pub(crate) fn is_readable(&self) -> bool {
            *self.0.lock() > 0
        }
    }
}
