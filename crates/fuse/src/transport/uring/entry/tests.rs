use super::*;

use proptest::prelude::*;

use crate::protocol::abi::GetAttrIn;
use crate::protocol::decode::{self, Agreed, Op};

/// The content that the kernel would have put into an entry.
fn filled(opcode: u32, op_in: &[u8], payload: &[u8]) -> Entry {
    let mut entry = Entry::new(3).unwrap();
    let len = size_of::<InHeader>() + op_in.len() + payload.len();
    let len = u32::try_from(len).unwrap();
    let in_header = InHeader { len, opcode, unique: 42, nodeid: 1, ..InHeader::default() };
    entry.buffer.data()[..payload.len()].copy_from_slice(payload);
    let header = entry.header();
    header.in_out[..size_of::<InHeader>()].copy_from_slice(in_header.as_bytes());
    header.op_in[..op_in.len()].copy_from_slice(op_in);
    header.ent.commit_id = 42;
    header.ent.payload_sz = u32::try_from(payload.len()).unwrap();
    entry
}

fn out(entry: &mut Entry) -> (OutHeader, u32) {
    let header = entry.header();
    (OutHeader::read_from_prefix(&header.in_out).unwrap().0, header.ent.payload_sz)
}

#[test]
fn names_come_from_the_payload() {
    let mut entry = filled(Opcode::Lookup as u32, &[], b"name\0");
    let mut scratch = Buffer::new().unwrap();
    let received = entry.receive(&mut scratch).unwrap();
    assert_eq!(
        received,
        Received {
            unique: 42,
            caller: Client::Unknown,
            len: 45,
            payload: Payload::Copied,
            reads_ahead: false
        }
    );
    let (header, body) = decode::header(scratch.message(45)).unwrap();
    let Op::Lookup { name } = decode::operation(&header, body, Agreed::default()).unwrap() else {
        panic!("not a look-up")
    };
    assert_eq!(name, "name");
    assert_eq!((entry.queue(), entry.commit_id()), (3, 42));
}

#[test]
fn structures_come_from_the_header() {
    let arg = GetAttrIn { getattr_flags: 1, dummy: 0, fh: 77 };
    let mut entry = filled(Opcode::GetAttr as u32, arg.as_bytes(), &[]);
    let mut scratch = Buffer::new().unwrap();
    let len = entry.receive(&mut scratch).unwrap().len;
    let (header, body) = decode::header(scratch.message(len)).unwrap();
    let Op::GetAttr(got) = decode::operation(&header, body, Agreed::default()).unwrap() else {
        panic!("not GETATTR")
    };
    assert_eq!(got, arg);
}

#[test]
fn much_data_stays_and_little_is_copied() {
    for (size, payload) in
        [(COPIED_MAX, Payload::Copied), (COPIED_MAX + 1, Payload::InPlace), (1 << 20, Payload::InPlace)]
    {
        let data = vec![9; size];
        let arg = WriteIn { fh: 5, size: u32::try_from(size).unwrap(), ..WriteIn::default() };
        let mut entry = filled(Opcode::Write as u32, arg.as_bytes(), &data);
        let mut scratch = Buffer::new().unwrap();
        let received = entry.receive(&mut scratch).unwrap();
        assert_eq!((received.payload, received.reads_ahead), (payload, false), "{size}");
        let kept_at = entry.buffer.data().as_ptr().addr();
        let buffer = if payload == Payload::InPlace { &entry.buffer } else { &scratch };
        let (header, body) = decode::header(buffer.message(received.len)).unwrap();
        let Op::Write { data: got, .. } = decode::operation(&header, body, Agreed::default()).unwrap() else {
            panic!("not a write")
        };
        assert_eq!(got, data);
        assert_eq!(got.as_ptr().addr() == kept_at, payload == Payload::InPlace);
    }
}

#[test]
fn large_reads_are_put_together_before_their_data() {
    let arg = ReadIn { fh: 5, size: 1 << 20, ..ReadIn::default() };
    let mut entry = filled(Opcode::Read as u32, arg.as_bytes(), &[]);
    let mut scratch = Buffer::new().unwrap();
    let received = entry.receive(&mut scratch).unwrap();
    assert_eq!((received.payload, received.reads_ahead), (Payload::InPlace, true));
    let data = entry.buffer.data();
    assert_eq!(data.len(), 1 << 20);
    data.fill(7);
    let (header, body) = decode::header(entry.buffer.message(received.len)).unwrap();
    assert!(matches!(decode::operation(&header, body, Agreed::default()), Ok(Op::Read(got)) if got == arg));
    entry.conclude_in_place(42, Some(InPlaceReply::Data(1000)));
    assert_eq!(out(&mut entry), (OutHeader { len: 1016, error: 0, unique: 42 }, 1000));
    assert!(entry.buffer.data()[..1000].iter().all(|&byte| byte == 7));
}

#[test]
fn lengths_that_do_not_fit_are_errors_that_can_be_answered() {
    let mut scratch = Buffer::new().unwrap();
    let room = entry_room();
    type Spoil = fn(&mut Header);
    let cases: [(Spoil, EntryError); 5] = [
        (|h| h.ent.payload_sz = u32::MAX, EntryError::Payload { said: u32::MAX, room }),
        (|h| h.ent.payload_sz += 1, EntryError::Length { said: 45, payload: 6 }),
        (|h| h.in_out[0] = 39, EntryError::Length { said: 39, payload: 5 }),
        (|h| h.in_out[1] = 1, EntryError::Length { said: 45 + 256, payload: 5 }),
        (|h| h.in_out[8..16].fill(0), EntryError::NoNumber),
    ];
    for (spoil, expected) in cases {
        let mut entry = filled(Opcode::Lookup as u32, &[], b"name\0");
        spoil(entry.header());
        assert_eq!(entry.receive(&mut scratch), Err(expected));
        entry.refuse(Errno::IO);
        assert_eq!(out(&mut entry), (OutHeader { len: 16, error: -libc::EIO, unique: 42 }, 0));
        assert_eq!(entry.commit_id(), 42);
    }
}

fn entry_room() -> usize {
    Buffer::new().unwrap().data().len()
}

#[test]
fn answers_go_into_header_and_payload() {
    let mut entry = filled(Opcode::GetAttr as u32, &[0; 16], &[]);
    entry.answer(42, Ok([b"one", b"two!"])).unwrap();
    assert_eq!(out(&mut entry), (OutHeader { len: 23, error: 0, unique: 42 }, 7));
    assert_eq!(&entry.buffer.data()[..7], b"onetwo!");
    entry.answer(42, Err(Errno::NOENT)).unwrap();
    assert_eq!(out(&mut entry), (OutHeader { len: 16, error: -libc::ENOENT, unique: 42 }, 0));
    let too_long = vec![0; entry_room() + 1];
    assert_eq!(entry.answer(42, Ok([&too_long, &[]])), Err(Errno::MSGSIZE));
    assert_eq!(out(&mut entry).0.error, -libc::EIO);
    entry.conclude_in_place(42, Some(InPlaceReply::Small([8; 16], 8)));
    assert_eq!(out(&mut entry).1, 8);
    assert_eq!(&entry.buffer.data()[..9], &[8, 8, 8, 8, 8, 8, 8, 8, 0][..]);
    entry.conclude_in_place(42, None);
    assert_eq!(out(&mut entry).0.error, -libc::EIO);
}

#[test]
fn what_held_much_data_is_worth_releasing() {
    let mut entry = filled(Opcode::Write as u32, &[0; 40], &vec![1; WORTH_RELEASING]);
    assert!(!entry.is_large());
    entry.receive(&mut Buffer::new().unwrap()).unwrap();
    assert!(entry.is_large());
    entry.release();
    assert!(!entry.is_large());
    assert_eq!(entry.buffer.data()[WORTH_RELEASING - 1], 0);
}

#[test]
fn a_registration_names_header_and_payload() {
    let mut entry = Entry::new(0).unwrap();
    let payload = (entry.buffer.data().as_ptr().addr(), entry.buffer.data().len());
    let header = entry.buffer.head().as_ptr().addr();
    let (vecs, count) = entry.vecs();
    assert_eq!((vecs.addr(), count), (header + VECS_AT, 2));
    let Vecs(vecs) = Vecs::read_from_bytes(&entry.buffer.head()[VECS_AT..][..size_of::<Vecs>()]).unwrap();
    assert_eq!(vecs, [[header, 288], [payload.0, payload.1]]);
}

proptest! {
    /// Whatever is in an entry: no panic, and what is put together is as long as it says.
    #[test]
    fn any_bytes_are_read_or_refused(
        head in proptest::collection::vec(any::<u8>(), size_of::<Header>()),
        len in prop_oneof![Just(40), 0_u32..400, any::<u32>()],
        opcode in 0_u32..60,
        payload in prop_oneof![0_u32..300, 0_u32..2_000_000, any::<u32>()],
        sum_is_right in any::<bool>(),
    ) {
        let mut entry = Entry::new(0).unwrap();
        entry.buffer.head()[..head.len()].copy_from_slice(&head);
        let header = entry.header();
        let first = u32::from(header.op_in[0]);
        let len = if sum_is_right { payload.saturating_add(40 + first) } else { len };
        header.in_out[..4].copy_from_slice(&len.to_ne_bytes());
        header.in_out[4..8].copy_from_slice(&opcode.to_ne_bytes());
        header.ent.payload_sz = payload;
        let mut scratch = Buffer::new().unwrap();
        if let Ok(received) = entry.receive(&mut scratch) {
            prop_assert_eq!(received.len, usize::try_from(len).unwrap());
            let buffer = if received.payload == Payload::InPlace { &entry.buffer } else { &scratch };
            let split = decode::header(buffer.message(received.len));
            if let Ok((header, body)) = split {
                let _any = decode::operation(&header, body, Agreed { setxattr_ext: true });
            }
        }
    }
}
