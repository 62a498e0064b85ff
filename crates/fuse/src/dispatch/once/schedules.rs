//! Servers that die at any store to their journal, with mutants that the same tests catch.
//!
//! The kernel is a model: it sends the requests of a program, takes answers, and sends again what was
//! not answered. Requests are decoded, executed, noted and answered by the product's own code, over a
//! store in memory that outlives the servers. A server dies before the n-th store to its journal, or
//! before it gives its n-th answer. From then on its calls of the store fail, its journal stays as it
//! is, and its answers nobody gets.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use ::recovery::journal::RESENT;
use ::recovery::{Journal, LastEnd, Link, Memory, NodeKey, Recovery, link};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use store::{At as When, HookStore, MemStore, Name, Store as _};
use sync::{model, mutant};
use volume::{NodeId, Options, Volume};

use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::device::Dev;
use crate::dispatch::RequestHandler;
use crate::in_flight::RequestSlot;
use crate::protocol::abi::Opcode;
use crate::resent::Resent;
use crate::transport::dev_fuse::pool::ThreadPool;
use crate::transport::reply_channel::ReplyChannel;

/// Stores to the journal that a server may live for, at most: all of the program's are fewer.
const LIVES_FOR: usize = 160;
/// What a dying server leaves among its answers: the kernel takes none that comes after.
const DEATH: &[u8] = b"died";

/// Answers that a server may give, at most.
const ANSWERS: usize = 22;

/// How long a server lives.
#[derive(Debug, Clone, Copy)]
enum Life {
    /// It dies before it makes one store more than these to its journal.
    Stores(usize),
    /// It dies before it gives one answer more than these.
    Answers(usize),
}

impl Life {
    fn any() -> Self {
        if model::maybe() {
            Self::Stores(model::number(LIVES_FOR))
        } else {
            Self::Answers(model::number(ANSWERS))
        }
    }
}

/// One server's access to the words.
#[derive(Debug)]
struct Words {
    words: Arc<Mutex<HashMap<usize, u64>>>,
    life: Life,
    /// Stores or answers so far.
    so_far: AtomicUsize,
    is_dead: AtomicBool,
    /// What it has said last, nobody gets.
    is_mute: Arc<AtomicBool>,
    device: Weak<OwnedFd>,
    kernel: Weak<OwnedFd>,
}

// ORDERING: SeqCst throughout this file: the model runs in one thread.
impl Words {
    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    fn live(&self) {
        if self.is_dead() {
            return;
        }
        let so_far = self.so_far.load(Ordering::SeqCst);
        let dies = match self.life {
            Life::Stores(stores) => so_far == stores,
            Life::Answers(_) if !self.has_answered() => return,
            // The first store after the answer: it died before both.
            Life::Answers(answers) => so_far == answers,
        };
        if dies {
            self.is_dead.store(true, Ordering::SeqCst);
            self.is_mute.store(matches!(self.life, Life::Answers(_)), Ordering::SeqCst);
            if let Some(device) = self.device.upgrade() {
                send(device, DEATH, SendFlags::empty()).unwrap();
            }
        }
        self.so_far.store(so_far + 1, Ordering::SeqCst);
    }

    /// Whether an answer is on its way to the kernel.
    fn has_answered(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        self.kernel.upgrade().is_some_and(|kernel| recv(kernel, &mut [0; 16], flags).is_ok())
    }
}

impl Memory for Words {
    fn load(&self, at: usize) -> u64 {
        self.words.lock().unwrap().get(&at).copied().unwrap_or(0)
    }

    fn store(&self, at: usize, value: u64) {
        self.live();
        if !self.is_dead() {
            self.words.lock().unwrap().insert(at, value);
        }
    }

    fn raise(&self, at: usize, value: u64) {
        self.live();
        if !self.is_dead() {
            let mut words = self.words.lock().unwrap();
            let word = words.entry(at).or_default();
            *word = (*word).max(value);
        }
    }
}

/// A thread of a server.
struct Worker {
    handler: RequestHandler,
    buffer: Buffer,
    /// The message that was read.
    len: usize,
}

/// A server with two threads.
struct Server {
    words: Arc<Words>,
    connection: Arc<Connection>,
    dev: Arc<Dev>,
    workers: Vec<Worker>,
    /// Numbers of requests that it has got.
    got: Vec<u64>,
}

/// The kernel, a program, and what outlives servers.
struct World {
    store: Arc<MemStore>,
    words: Arc<Mutex<HashMap<usize, u64>>>,
    kernel: Arc<OwnedFd>,
    device: Arc<OwnedFd>,
    /// How long the next servers live.
    lives: VecDeque<Life>,
    is_mute: Arc<AtomicBool>,
    server: Option<Server>,
    next: u64,
    pending: VecDeque<(u64, Vec<u8>)>,
    processing: BTreeMap<u64, Vec<u8>>,
    answers: HashMap<u64, Answer>,
}

/// An answer's error, and its bytes.
type Answer = (i32, Vec<u8>);

fn quiet() -> Options {
    Options { flushers: 0, ..Options::default() }
}

impl World {
    fn new(lives: &[Life]) -> Self {
        let (device, kernel) = link::pair().unwrap();
        Self {
            store: MemStore::new(1 << 20),
            words: Arc::default(),
            kernel: Arc::new(kernel),
            device: Arc::new(device),
            lives: lives.iter().copied().collect(),
            is_mute: Arc::default(),
            server: None,
            next: 2,
            pending: VecDeque::new(),
            processing: BTreeMap::new(),
            answers: HashMap::new(),
        }
    }

    /// Starts a server; it may die at once.
    fn start(&mut self) {
        let device = self.device.try_clone().unwrap();
        let words = Arc::new(Words {
            words: Arc::clone(&self.words),
            life: self.lives.pop_front().unwrap_or(Life::Stores(usize::MAX)),
            so_far: AtomicUsize::new(0),
            is_dead: AtomicBool::new(false),
            is_mute: Arc::clone(&self.is_mute),
            device: Arc::downgrade(&self.device),
            kernel: Arc::downgrade(&self.kernel),
        });
        let memory = Arc::clone(&words) as Arc<dyn Memory>;
        // A journal that was not begun is begun again, as by another mount.
        let is_first = self.words.lock().unwrap().is_empty();
        let store = HookStore::new(Arc::clone(&self.store) as _);
        let hooked = Arc::clone(&words);
        store.hook(move |at, op| match at {
            When::Before if hooked.is_dead() => Err(store::Error::new(store::ErrorKind::Io, op)),
            _ => Ok(()),
        });
        let journal = if is_first {
            Journal::create_in(memory)
        } else {
            Journal::recover_in(memory, LastEnd::Crashed).unwrap()
        };
        // The model's store names an object by its number.
        let is_whole = |key: Option<NodeKey>, id: u64| key.is_some_and(|key| key.ino == id);
        for (_, node) in journal.nodes() {
            assert!(is_whole(node.key, node.id), "a record counts that is not whole");
        }
        let recovery = Arc::new(Recovery { journal, link: Link::to_nobody(), held: Vec::new() });
        let options = Options { recovery: Some(Arc::clone(&recovery)), ..quiet() };
        let volume =
            if is_first { Volume::new(store, options) } else { Volume::recover(store, options, &[]) };
        // A server that dies ends nothing; its volume would end the store.
        let volume = volume.unwrap();
        std::mem::forget(Arc::clone(&volume));
        let dev = Arc::new(Dev::new(device));
        let connection = Connection {
            resent: Resent::new(Some(recovery)),
            ..Connection::without_kernel(volume, Arc::clone(&dev), ThreadPool::new(0))
        };
        let connection = Arc::new(connection);
        connection.resent.ask(&dev).unwrap();
        let workers = (0..2).map(|number| {
            let slot = Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::clone(&dev))));
            connection.in_flight.add(&slot);
            let handler = RequestHandler::new(Arc::clone(&connection), slot, number);
            Worker { handler, buffer: Buffer::new().unwrap(), len: 0 }
        });
        let workers = workers.collect();
        self.take_answers();
        self.keep(Server { words, connection, dev, workers, got: Vec::new() });
    }

    /// Takes what the server has said up to its death.
    fn take_answers(&mut self) {
        let mut is_over = self.is_mute.swap(false, Ordering::SeqCst);
        loop {
            let mut bytes = [0; 4096];
            let received = recv(&self.kernel, &mut bytes, RecvFlags::DONTWAIT);
            let Ok((len, _)) = received else { return };
            is_over |= &bytes[..len] == DEATH;
            if is_over {
                continue;
            }
            let word = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let unique = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
            if unique == 0 {
                assert_eq!(word(4), 7, "the notification is RESEND");
                let mut again = std::mem::take(&mut self.processing).into_iter().collect::<VecDeque<_>>();
                again.iter_mut().for_each(|(unique, _)| *unique |= RESENT);
                again.append(&mut self.pending);
                self.pending = again;
            } else if self.processing.remove(&unique).is_some() {
                self.answers.insert(unique & !RESENT, (word(4), bytes[16..len].to_vec()));
            }
        }
    }

    fn send(&mut self, opcode: Opcode, node: u64, body: &[&[u8]]) -> u64 {
        let unique = self.next;
        self.next += 2;
        let body = body.concat();
        let mut message = Vec::new();
        message.extend(u32::try_from(40 + body.len()).unwrap().to_le_bytes());
        message.extend((opcode as u32).to_le_bytes());
        message.extend([0; 8]);
        message.extend(node.to_le_bytes());
        message.extend([0; 16]);
        message.extend(body);
        self.pending.push_back((unique, message));
        unique
    }

    /// Has all requests answered that were sent, by as many servers as that takes. Two threads read
    /// before the first of them serves.
    fn run(&mut self) {
        while !self.pending.is_empty() || !self.processing.is_empty() {
            if self.server.is_none() {
                self.start();
                continue;
            }
            let mut reading = Vec::new();
            for at in 0..2 {
                reading.extend(self.read(at).then_some(at));
            }
            for at in reading {
                let Some(mut server) = self.server.take() else { break };
                let worker = &mut server.workers[at];
                worker.handler.serve(&mut worker.buffer, worker.len, false);
                self.take_answers();
                self.keep(server);
            }
        }
    }

    /// One thread of the server reads a request.
    fn read(&mut self, at: usize) -> bool {
        let Some(mut server) = self.server.take() else { return false };
        let worker = &mut server.workers[at];
        let reading = server.connection.resent.reading(&server.dev);
        self.take_answers();
        let Some((unique, mut message)) = self.pending.pop_front() else {
            drop(reading);
            self.server = Some(server);
            return false;
        };
        assert!(!server.got.contains(&(unique & !RESENT)), "a request was sent to one server twice");
        server.got.push(unique & !RESENT);
        message[8..16].copy_from_slice(&unique.to_le_bytes());
        send(&self.kernel, &message, SendFlags::empty()).unwrap();
        let is_answered = !matches!(message[4], 2);
        if is_answered {
            self.processing.insert(unique, message);
        }
        worker.len = server.dev.read(worker.buffer.space()).unwrap();
        worker.handler.note(worker.buffer.message(worker.len));
        drop(reading);
        self.take_answers();
        self.keep(server)
    }

    /// The server goes on, unless it is dead.
    fn keep(&mut self, server: Server) -> bool {
        if server.words.is_dead() {
            return false;
        }
        self.server = Some(server);
        true
    }

    /// A request that must succeed; its answer.
    fn ok(&mut self, what: &str, opcode: Opcode, node: u64, body: &[&[u8]]) -> Vec<u8> {
        let unique = self.send(opcode, node, body);
        self.run();
        self.answer(what, unique)
    }

    fn answer(&mut self, what: &str, unique: u64) -> Vec<u8> {
        let (error, bytes) = self.answers.remove(&unique).expect("answered");
        assert_eq!(error, 0, "{what} was not executed once");
        bytes
    }
}

/// The number of 8 bytes at this place of an answer.
fn number(answer: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(answer[at..at + 8].try_into().unwrap())
}

fn two(first: u32, second: u32) -> [u8; 8] {
    let mut both = [0; 8];
    both[..4].copy_from_slice(&first.to_le_bytes());
    both[4..].copy_from_slice(&second.to_le_bytes());
    both
}

/// A program's requests: each fails where it is executed twice, or where its node or opening is lost.
fn program(world: &mut World) {
    let root = NodeId::ROOT.0;
    let entry = |answer: &[u8]| number(answer, 0);
    let mode = |mode| two(mode, 0);
    // Two at a time.
    let [dir, other] = {
        let numbers =
            [&b"dir\0"[..], b"other\0"].map(|name| world.send(Opcode::MkDir, root, &[&mode(0o755), name]));
        world.run();
        numbers.map(|number| entry(&world.answer("mkdir", number)))
    };
    let flags = [two(0o102, 0o644), two(0, 0)].concat();
    let created = world.ok("create", Opcode::Create, dir, &[&flags, b"file\0"]);
    let (file, handle) = (entry(&created), number(&created, 128));
    let mut write = [handle.to_le_bytes(), 0_u64.to_le_bytes(), two(4, 0), [0; 8], [0; 8]].concat();
    write.extend(b"data");
    world.ok("write", Opcode::Write, file, &[&write]);
    let target = world.ok("symlink", Opcode::Symlink, dir, &[b"symlink\0", b"target\0"]);
    let linked = world.ok("link", Opcode::Link, other, &[&file.to_le_bytes(), b"linked\0"]);
    assert_eq!(entry(&linked), file);
    let to = |flags| [&dir.to_le_bytes()[..], &two(flags, 0)].concat();
    world.ok("rename", Opcode::Rename2, other, &[&to(0), b"linked\0", b"moved\0"]);
    // Afterwards `moved` is the link, and `symlink` the file.
    world.ok("exchange", Opcode::Rename2, dir, &[&to(2), b"moved\0", b"symlink\0"]);
    let found = world.ok("lookup", Opcode::Lookup, dir, &[b"moved\0"]);
    assert_eq!(entry(&found), entry(&target), "exchanged once");
    world.ok("unlink", Opcode::Unlink, dir, &[b"file\0"]);
    world.ok("setxattr", Opcode::SetXattr, file, &[&two(1, 1), b"user.one\0", b"1"]);
    world.ok("removexattr", Opcode::RemoveXattr, file, &[b"user.one\0"]);
    let opened = world.ok("opendir", Opcode::OpenDir, dir, &[&two(0, 0)]);
    write[8] = 4;
    world.ok("write to what was opened", Opcode::Write, file, &[&write]);
    let release = |handle: u64| [handle.to_le_bytes(), two(0, 0), [0; 8]].concat();
    world.ok("releasedir", Opcode::ReleaseDir, dir, &[&release(number(&opened, 0))]);
    world.ok("release", Opcode::Release, file, &[&release(handle)]);
    world.ok("rmdir", Opcode::RmDir, root, &[b"other\0"]);
    for node in [dir, other, file] {
        world.ok("the attributes of a node that the kernel has", Opcode::GetAttr, node, &[&[0; 16]]);
    }
}

/// Each request is executed once, and what the kernel knows is known, wherever servers die.
///
/// Two servers die before a store to their journal, each before any; the third one lives. Its tree is
/// the one that requests make that are executed once.
#[test]
fn each_request_is_executed_once_wherever_servers_die() {
    model::check(|| {
        let mut world = World::new(&[Life::any(), Life::any()]);
        program(&mut world);
        let at = |dir, name: &'static str| {
            let entry = world.store.lookup(dir, Name::new(name.as_ref()).unwrap());
            entry.map(|entry| entry.id)
        };
        let dir = at(NodeId::ROOT, "dir").unwrap();
        assert!(at(NodeId::ROOT, "other").is_err() && at(dir, "file").is_err(), "removed");
        let file = at(dir, "symlink").expect("exchanged once");
        assert_eq!(world.store.attr(file).unwrap().size, 8, "each write once, at its offset");
        assert_eq!(world.store.attr(file).unwrap().nlink, 1, "each link once");
    });
}

/// An outcome that was noted is answered, whatever the store shows by then.
///
/// Another process of the host has made the directory that a program is about to make, so that the
/// request fails; to a server that knows only that the store was asked, the name looks like its own.
#[test]
fn an_outcome_that_was_noted_is_answered() {
    model::check(|| {
        let mut world = World::new(&[Life::Answers(0), Life::Answers(0)]);
        let creator = store::Creator { uid: 0, gid: 0, umask: 0 };
        let name = Name::new("there".as_ref()).unwrap();
        world.store.make(NodeId::ROOT, name, store::NewNode::Directory, 0o755, creator).unwrap();
        let making = world.send(Opcode::MkDir, NodeId::ROOT.0, &[&two(0o755, 0), b"there\0"]);
        world.run();
        let (error, _) = world.answers.remove(&making).expect("answered");
        assert_eq!(error, -libc::EEXIST, "the outcome was not kept");
    });
}

#[test]
fn an_outcome_that_is_not_kept_is_caught() {
    let test = "dispatch::once::schedules::an_outcome_that_was_noted_is_answered";
    mutant::assert_caught(test, &["recovery-outcome-not-kept"], "the outcome was not kept");
}

#[test]
fn a_journal_that_forgets_is_caught() {
    let test = "dispatch::once::schedules::each_request_is_executed_once_wherever_servers_die";
    let executed = "was not executed once";
    mutant::assert_caught_by_any(
        test,
        &[
            "recovery-intent-not-kept",
            "recovery-noted-after-its-answer",
            "recovery-ended-before-its-answer",
            "recovery-orphan-ended-before-its-copy",
            "recovery-outcome-counts-before-it-is-whole",
        ],
        &[executed, "exchanged once"],
    );
    mutant::assert_caught_by_any(
        test,
        &["recovery-lookups-off-by-one", "recovery-opening-not-noted"],
        &[executed],
    );
    mutant::assert_caught(test, &["recovery-counts-before-it-is-whole"], "a record counts that is not whole");
    mutant::assert_caught(test, &["recovery-resend-twice"], "a request was sent to one server twice");
}
