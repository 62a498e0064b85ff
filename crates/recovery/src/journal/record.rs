//! What the journal has records of.

/// How the host's kernel finds an object again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeKey {
    /// The object's number on its file system.
    pub ino: u64,
    /// Its kind, as a number that the store knows.
    pub kind: u32,
    /// Its generation, if one was handed out.
    pub generation: Option<u32>,
    /// The type of its file handle, and its bytes.
    pub handle: (i32, Vec<u8>),
}

/// A node that the kernel knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its number.
    pub id: u64,
    /// The look-ups that the kernel has.
    pub lookups: u64,
    /// How to find it; none if the object was gone when it was noted.
    pub key: Option<NodeKey>,
}

/// What is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenKind {
    /// A file.
    File,
    /// A directory.
    Dir,
}

/// Something open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRecord {
    /// What.
    pub kind: OpenKind,
    /// The number that the kernel has.
    pub handle: u64,
    /// The node.
    pub node: u64,
    /// How it was opened.
    pub flags: u32,
    /// A user that is not root can have mapped it through this opening.
    pub is_foreign_mapper: bool,
    /// The thread that opened it.
    pub opener_pid: u32,
    /// The request that did, by the kernel's number.
    pub request: u64,
}

/// How far a request came that must not be executed twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Nothing was done.
    #[default]
    Begun,
    /// The store was asked, or is about to be; with what was found before.
    Intent(u64),
    /// It was done; with the node that it made, if it did.
    Done(u64),
    /// It failed with this error's number.
    Failed(u32),
}

/// A request that a server had in its hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestRecord {
    /// How far it came.
    pub phase: Phase,
    /// How many servers have died with it in their hands.
    pub crashes: u64,
}

/// A slot of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(pub(super) u32);
