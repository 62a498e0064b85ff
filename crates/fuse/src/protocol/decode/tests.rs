//! Any bytes, and messages as the kernel makes them.

use proptest::prelude::*;
use zerocopy::{Immutable, IntoBytes};

use super::*;

fn message(opcode: u32, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let header = InHeader {
        len: u32::try_from(size_of::<InHeader>() + body.len()).unwrap(),
        opcode,
        unique: 8,
        nodeid: 5,
        uid: 1000,
        gid: 1000,
        pid: 77,
        ..InHeader::default()
    };
    [header.as_bytes(), &body].concat()
}

/// Decodes, and checks that what was found lies within the message.
fn decode(message: &[u8], agreed: Agreed) -> Result<Op<'_>, DecodeError> {
    let (header, body) = header(message)?;
    let op = operation(&header, body, agreed)?;
    let inside = |part: &[u8]| {
        let (outer, inner) = (message.as_ptr_range(), part.as_ptr_range());
        assert!(part.is_empty() || outer.start <= inner.start && inner.end <= outer.end);
    };
    let name = |name: &OsStr| {
        inside(name.as_bytes());
        assert!(!name.as_bytes().contains(&0), "a NUL in a name");
    };
    match op {
        Op::Lookup { name: n }
        | Op::MkNod { name: n, .. }
        | Op::MkDir { name: n, .. }
        | Op::Unlink { name: n }
        | Op::RmDir { name: n }
        | Op::Link { name: n, .. }
        | Op::GetXattr { name: n, .. }
        | Op::RemoveXattr { name: n }
        | Op::Create { name: n, .. } => name(n),
        Op::Symlink { name: a, target: b } | Op::Rename { name: a, new_name: b, .. } => {
            name(a);
            name(b);
        }
        Op::SetXattr { arg, name: n, value } => {
            name(n);
            inside(value);
            assert_eq!(value.len(), arg.size as usize);
        }
        Op::Write { arg, data } => {
            inside(data);
            assert_eq!(data.len(), arg.size as usize);
        }
        Op::BatchForget(forgets) => {
            inside(forgets.0);
            assert_eq!(forgets.iter().count(), forgets.0.len() / 16);
        }
        _ => {}
    }
    Ok(op)
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), ext in any::<bool>()) {
        let _ = decode(&bytes, Agreed { setxattr_ext: ext });
    }

    #[test]
    fn any_body_behind_a_right_header_is_decoded_or_refused(
        opcode in 0u32..60,
        body in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..300),
        ext in any::<bool>(),
    ) {
        let _ = decode(&message(opcode, &[&body]), Agreed { setxattr_ext: ext });
    }

    #[test]
    fn extensions_never_reach_beyond_the_body(words in any::<u16>(), len in 0usize..100) {
        let mut bytes = message(1, &[&vec![b'x'; len], &[0]]);
        let at = std::mem::offset_of!(InHeader, total_extlen);
        bytes[at..at + 2].copy_from_slice(&words.to_ne_bytes());
        match header(&bytes) {
            Ok((_, body)) => prop_assert_eq!(body.len(), len + 1 - usize::from(words) * 8),
            Err(error) => {
                let refused = matches!(error, DecodeError::Extensions { .. });
                prop_assert!(refused && usize::from(words) * 8 > len + 1);
            }
        }
    }

    #[test]
    fn what_is_cut_off_is_refused(opcode in 0u32..60, cut in 1usize..40) {
        // Fixed parts are refused when they are shorter; names when their NUL is missing.
        let whole = message(opcode, &[&[0; 88]]);
        let short = &whole[..whole.len() - cut];
        prop_assert_eq!(header(short).unwrap_err(), DecodeError::Length { said: 128, got: 128 - cut });
    }
}

fn fixed<T: IntoBytes + Immutable>(value: &T) -> &[u8] {
    value.as_bytes()
}

fn decoded(bytes: &[u8]) -> Op<'_> {
    decode(bytes, Agreed { setxattr_ext: true }).unwrap()
}

#[test]
fn names_are_found_where_the_kernel_puts_them() {
    let bytes = message(1, &[b"file\0"]);
    assert!(matches!(decoded(&bytes), Op::Lookup { name } if name == "file"));
    let bytes = message(6, &[b"link\0", b"../target\0"]);
    assert!(
        matches!(decoded(&bytes), Op::Symlink { name, target } if name == "link" && target == "../target")
    );
    let bytes = message(12, &[fixed(&RenameIn { newdir: 9 }), b"old\0", b"new\0"]);
    let Op::Rename { arg, name, new_name } = decoded(&bytes) else { panic!() };
    assert_eq!((arg.newdir, arg.flags), (9, 0));
    assert_eq!((name, new_name), (OsStr::new("old"), OsStr::new("new")));
    let bytes = message(45, &[fixed(&Rename2In { newdir: 9, flags: 2, padding: 0 }), b"old\0", b"new\0"]);
    let Op::Rename { arg, .. } = decoded(&bytes) else { panic!() };
    assert_eq!(arg.flags, 2);
    let bytes = message(1, &[b"no end"]);
    let refused = decode(&bytes, Agreed::default()).unwrap_err();
    assert_eq!(refused, DecodeError::UnendedName { op: Opcode::Lookup });
    assert_eq!(refused.to_string(), "Lookup has a name without an end");
    // The second name is missing.
    assert!(decode(&message(6, &[b"link\0"]), Agreed::default()).is_err());
}

#[test]
fn data_of_a_write_has_the_length_that_it_says() {
    let arg = WriteIn { fh: 3, offset: 4096, size: 5, ..WriteIn::default() };
    let bytes = message(16, &[fixed(&arg), b"12345"]);
    assert!(matches!(decoded(&bytes), Op::Write { arg: a, data: b"12345" } if a == arg));
    let bytes = message(16, &[fixed(&arg), b"1234"]);
    let refused = decode(&bytes, Agreed::default()).unwrap_err();
    assert_eq!(refused, DecodeError::Short { op: Opcode::Write, need: 5, got: 4 });
    let huge = WriteIn { size: u32::MAX, ..arg };
    assert!(decode(&message(16, &[fixed(&huge), b"12345"]), Agreed::default()).is_err());
}

#[test]
fn setxattr_has_two_forms() {
    let long = SetXattrIn { size: 3, flags: 1, setxattr_flags: 1, padding: 0 };
    let bytes = message(21, &[fixed(&long), b"user.a\0", b"xyz"]);
    assert!(
        matches!(decoded(&bytes), Op::SetXattr { arg, name, value: b"xyz" } if arg == long && name == "user.a")
    );
    let short = SetXattrInCompat { size: 3, flags: 2 };
    let bytes = message(21, &[fixed(&short), b"user.a\0", b"xyz"]);
    let Ok(Op::SetXattr { arg, value: b"xyz", .. }) = decode(&bytes, Agreed::default()) else { panic!() };
    assert_eq!((arg.flags, arg.setxattr_flags), (2, 0));
}

#[test]
fn forgets_are_counted() {
    let one = ForgetOne { nodeid: 2, nlookup: 3 };
    let two = ForgetOne { nodeid: 4, nlookup: 5 };
    let head = BatchForgetIn { count: 2, dummy: 0 };
    let bytes = message(42, &[fixed(&head), fixed(&one), fixed(&two)]);
    let Op::BatchForget(forgets) = decoded(&bytes) else { panic!() };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [one, two]);
    let bytes = message(42, &[fixed(&head), fixed(&one)]);
    assert!(decode(&bytes, Agreed::default()).is_err());
    let head = BatchForgetIn { count: u32::MAX, dummy: 0 };
    assert!(decode(&message(42, &[fixed(&head), fixed(&one)]), Agreed::default()).is_err());
}

#[test]
fn init_may_be_short_or_long() {
    let long = InitIn { major: 7, minor: 45, max_readahead: 1, flags: 1 << 30, flags2: 3, unused: [0; 11] };
    assert!(matches!(decoded(&message(26, &[fixed(&long)])), Op::Init(arg) if arg == long));
    let bytes = message(26, &[&fixed(&long)[..16]]);
    assert!(matches!(decoded(&bytes), Op::Init(arg) if arg == InitIn { flags2: 0, ..long }));
    // The second half counts only if the first says so.
    let plain = InitIn { flags: 0, ..long };
    assert!(matches!(decoded(&message(26, &[fixed(&plain)])), Op::Init(arg) if arg.flags2 == 0));
    assert!(decode(&message(26, &[&fixed(&long)[..12]]), Agreed::default()).is_err());
}

#[test]
fn what_is_not_known_is_no_error() {
    assert!(matches!(decoded(&message(4000, &[])), Op::Unknown(4000)));
    assert!(matches!(decoded(&message(52, &[])), Op::NotServed(Opcode::StatX)));
    for op in Opcode::ALL {
        assert_eq!(Opcode::from_number(*op as u32), Some(*op));
        assert!((*op as usize) < abi::OPCODES);
    }
}

#[test]
fn bytes_that_follow_are_left_alone() {
    let arg = ForgetIn { nlookup: 4 };
    let bytes = message(2, &[fixed(&arg), b"something newer"]);
    assert!(matches!(decoded(&bytes), Op::Forget(a) if a == arg));
}
