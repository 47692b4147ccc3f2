//! Records of prefixes and of checkpoints, which are read from the disk.

#![no_main]

use brigade_worker::records::record::{Bundle, begun, verify};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let _ = Bundle::decode(input);
    let Some((n, rest)) = input.split_first() else { return };
    let Some((head, data)) = rest.split_at_checked(rest.len().saturating_sub(usize::from(*n)))
    else {
        return;
    };
    let mut bytes = begun(head, data.len());
    let head_bytes = bytes.len() as u64;
    bytes.extend_from_slice(data);
    let Some(bundle) = Bundle::decode(&bytes) else { return };
    let mut end = head_bytes;
    for record in &bundle.records {
        let place = bundle.place(record);
        assert_eq!(place.start, end, "records follow each other");
        end = place.end;
        let found = bytes.get(place.start as usize..place.end as usize).unwrap_or_default();
        let is_whole = verify(record, found.to_vec().into()).is_ok();
        assert!(!is_whole || found.len() as u64 == record.nbytes());
    }
    assert_eq!(bundle.nbytes(), end);
});
