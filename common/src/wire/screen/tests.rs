use super::*;

/// One frame.
fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).unwrap();
    [&[kind], &channel.to_be_bytes()[..], &size.to_be_bytes(), payload, &[FRAME_END]].concat()
}

fn short(text: &[u8]) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text].concat()
}

fn deliver(channel: u16, tag: u64, exchange: &[u8], routing_key: &[u8]) -> Vec<u8> {
    let method =
        [&[0, 60, 0, 60][..], &short(b"ctag"), &tag.to_be_bytes(), &[0], &short(exchange), &short(routing_key)];
    frame(METHOD, channel, &method.concat())
}

fn header(channel: u16, body: u64, properties: &[u8]) -> Vec<u8> {
    frame(HEADER, channel, &[&[0, 60, 0, 0][..], &body.to_be_bytes(), properties].concat())
}

/// Properties that consist of the given header table.
fn headers(table: &[u8]) -> Vec<u8> {
    [&[0x20, 0][..], &u32::try_from(table.len()).unwrap().to_be_bytes(), table].concat()
}

/// Nested arrays under one name.
fn nested(levels: usize) -> Vec<u8> {
    let mut value = vec![b'V'];
    for _ in 0..levels {
        let len = u32::try_from(value.len()).unwrap().to_be_bytes();
        value = [b"A", &len[..], &value].concat();
    }
    [short(b"n"), value].concat()
}

/// The bytes for the client and the announced messages. They must be the same however the input is cut.
fn screened(input: &[u8], wanted: bool) -> (Vec<u8>, Vec<Arrival>) {
    let whole = in_pieces(input, input.len(), wanted);
    for piece in [1, 3, 7, 1_000] {
        assert_eq!(in_pieces(input, piece, wanted), whole, "in pieces of {piece} bytes");
    }
    whole
}

fn in_pieces(input: &[u8], piece: usize, wanted: bool) -> (Vec<u8>, Vec<Arrival>) {
    let (mut screen, mut out, mut arrivals) = (Screen::default(), Vec::new(), Vec::new());
    for piece in input.chunks(piece.max(1)) {
        screen.feed(piece, &mut out, |arrival| {
            arrivals.push(arrival);
            wanted
        });
    }
    (out, arrivals)
}

/// A message, and a second one that the client must receive in full.
fn message(properties: &[u8], body: &[u8]) -> Vec<u8> {
    let parts = [deliver(3, 1, b"in", b"key"), header(3, body.len() as u64, properties), frame(BODY, 3, body), good()];
    parts.concat()
}

fn good() -> Vec<u8> {
    [deliver(3, 2, b"", b"q"), header(3, 4, &[0, 0]), frame(BODY, 3, b"good"), frame(HEARTBEAT, 0, b"")].concat()
}

#[test]
fn what_the_client_can_take_it_gets_byte_for_byte() {
    let table = [
        short(b"text"),
        b"S\0\0\0\x02\xff\0".to_vec(),
        short(b"int"),
        b"I\0\0\0\x07".to_vec(),
        nested(MAX_NESTING - 1),
        short("é".as_bytes()),
        b"F\0\0\0\x03\x01aV".to_vec(),
    ];
    for properties in
        [vec![0, 0], headers(&[]), headers(&table.concat()), [&[0x80, 0][..], &short(b"text/plain")].concat()]
    {
        let input = message(&properties, b"body");
        let (out, arrivals) = screened(&input, true);
        assert_eq!(out, input);
        assert_eq!(arrivals.len(), 2);
        assert!(arrivals.iter().all(|arrival| arrival.trouble.is_none() && arrival.channel == 3));
        assert_eq!(arrivals[0].delivery_tag, Some(1));
    }
}

#[test]
fn what_the_client_cannot_parse_arrives_with_empty_properties_and_a_note() {
    let name = |name: &[u8]| [&[0, 0x80][..], &short(name)].concat();
    for (properties, reason) in [
        (headers(&nested(MAX_NESTING)), "nested more than 32 levels"),
        (headers(&nested(9_000)), "nested more than 32 levels"),
        (headers(&[&short(b"\xe9")[..], b"V"].concat()), "`headers` cannot be read: a short text is not UTF-8"),
        (name(b"\xff"), "`message_id` cannot be read: a short text is not UTF-8"),
        (headers(&[&short(b"a")[..], b"?"].concat()), "unknown type of value '?'"),
        (headers(b"\x05a"), "it ends too early"),
        (headers(b"\x01aS\xff\xff\xff\xff"), "it ends too early"),
        (headers(&b"\0V".repeat(MAX_VALUES + 1)), "more than 10000 values"),
        (vec![0x20, 0, 0xff, 0xff, 0xff, 0xff], "it ends too early"),
        (vec![0, 0, 1], "followed by other data"),
    ] {
        let (out, arrivals) = screened(&message(&properties, b"body"), true);
        assert_eq!(out, message(&[0, 0], b"body"), "{reason}");
        let trouble = arrivals[0].trouble.clone().expect(reason);
        assert!(trouble.reason.contains(reason), "{}", trouble.reason);
        assert_eq!((trouble.properties, trouble.kind, trouble.is_cut), (properties, TroubleKind::Unreadable, false));
        assert_eq!(arrivals[1].trouble, None);
    }
}

#[test]
fn a_name_that_is_not_utf_8_is_replaced_and_kept_in_the_note() {
    let latin = [deliver(3, 1, b"in", b"caf\xe9.\xc3"), header(3, 0, &[0, 0]), good()].concat();
    let (out, arrivals) = screened(&latin, true);
    assert_eq!(out, [deliver(3, 1, b"in", b"caf?.?"), header(3, 0, &[0, 0]), good()].concat());
    let trouble = arrivals[0].trouble.as_ref().unwrap();
    assert_eq!(trouble.routing_key.as_deref(), Some(&b"caf\xe9.\xc3"[..]));
    let close = frame(METHOD, 1, &[&[0, 20, 0, 40, 1, 0x94][..], &short(b"no queue \xc3"), &[0, 0, 0, 0]].concat());
    let (out, arrivals) = screened(&close, true);
    assert!(std::str::from_utf8(&out[14..23]).is_ok() && !out.contains(&0xc3) && arrivals.is_empty());
}

#[test]
fn properties_larger_than_a_frame_are_cut() {
    let table = [short(b"a"), b"S".to_vec(), 200_000_u32.to_be_bytes().to_vec(), vec![b'x'; 200_000]].concat();
    let (out, arrivals) = screened(&message(&headers(&table), b"body"), true);
    assert_eq!(out, message(&[0, 0], b"body"));
    let trouble = arrivals[0].trouble.as_ref().unwrap();
    assert!(trouble.is_cut && trouble.properties.len() == KEPT_BYTES, "{}", trouble.reason);
}

#[test]
fn a_body_that_is_too_large_or_not_wanted_is_left_out() {
    let large = vec![b'x'; usize::try_from(MAX_BODY_BYTES).unwrap() + 1];
    let chunk = 100_000;
    let bodies: Vec<u8> = large.chunks(chunk).flat_map(|part| frame(BODY, 3, part)).collect();
    let properties = [&[0, 0x80][..], &short(b"id")].concat();
    let input = [deliver(3, 1, b"", b"q"), header(3, large.len() as u64, &properties), bodies, good()].concat();
    let (out, arrivals) = in_pieces(&input, 64 << 10, true);
    assert_eq!(out, [deliver(3, 1, b"", b"q"), header(3, 0, &properties), good()].concat());
    assert_eq!(arrivals[0].trouble.as_ref().unwrap().kind, TroubleKind::TooLarge);
    assert!(arrivals[0].weight < 10_000, "it takes no room");

    let (out, arrivals) = screened(&message(&properties, b"body"), false);
    let good = [deliver(3, 2, b"", b"q"), header(3, 0, &[0, 0]), frame(HEARTBEAT, 0, b"")].concat();
    let without_headers = header(3, 0, &[0, 0]);
    assert_eq!(out, [deliver(3, 1, b"in", b"key"), without_headers, good].concat());
    assert!(arrivals.iter().all(|arrival| arrival.trouble.is_none() && arrival.weight > 1_000));
}

#[test]
fn channels_do_not_mix() {
    let input = [
        deliver(1, 1, b"", b"a"),
        header(1, 8, &[0, 0]),
        deliver(2, 1, b"", b"b"),
        frame(BODY, 1, b"left"),
        header(2, 4, &[0, 0]),
        frame(BODY, 2, b"kept"),
        frame(BODY, 1, b"out."),
        deliver(1, 2, b"", b"a"),
        header(1, 4, &[0, 0]),
        frame(BODY, 1, b"kept"),
    ];
    let (mut screen, mut out) = (Screen::default(), Vec::new());
    let mut first = true;
    screen.feed(&input.concat(), &mut out, |_| !std::mem::take(&mut first));
    let expected =
        [&input[0], &header(1, 0, &[0, 0]), &input[2], &input[4], &input[5], &input[7], &input[8], &input[9]];
    assert_eq!(out, expected.into_iter().flatten().copied().collect::<Vec<u8>>());
}

#[test]
fn what_is_no_frame_goes_on_as_it_is() {
    for input in [&b"AMQP\0\0\x09\x01"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x09\0\0"] {
        assert_eq!(screened(input, true).0, input);
    }
    // A header too short for its own framing passes unchanged, for the client to refuse.
    let short = frame(HEADER, 1, b"\0\x3c");
    assert_eq!(screened(&short, true).0, short);
}
