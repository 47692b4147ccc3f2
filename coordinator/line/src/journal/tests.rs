//! The journal over restarts, and after damage.

use serde_json::{Value, json};

use super::*;

const BOUNDS: Bounds = Bounds { n_vocab: 100 };

fn folder(name: &str) -> PathBuf {
    let name = format!("brigade-journal-{name}-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    // One that a killed test has left.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn opened(id: &str) -> Opened {
    Opened {
        id: id.to_owned(),
        path: "/v1/chat/completions".to_owned(),
        owner: Some(u64::MAX - 1),
        label: "req".to_owned(),
        created: 7,
        seed: u64::MAX,
        prompts: vec![vec![1, 2, 3]],
        companion: Some(vec![4]),
        sequences: 2,
        body: "{\"messages\": []}".to_owned(),
    }
}

fn token(id: u32) -> SampledToken {
    SampledToken {
        id,
        logprob: Some(-0.1 - id as f32),
        top: vec![(id, f32::NEG_INFINITY)],
        ..SampledToken::default()
    }
}

#[test]
fn requests_and_tokens_come_back_as_they_were() {
    let folder = folder("back");
    let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
    assert!(found.is_empty());
    let (a, b) =
        (journal.begin(opened("a"), false).unwrap(), journal.begin(opened("b"), false).unwrap());
    let numerics = Numerics::of_layers([1, 1]);
    (0..5).for_each(|id| a.recorder(1).token(&token(id), (id == 0).then_some(numerics)));
    a.recorder(0).finished(&FinishReason::Stop(token(9)));
    b.recorder(0).token(&token(6), None);
    b.over();
    drop((a, b));
    journal.close();
    let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].opened, opened("a"));
    let drawn = &found[0].drawn;
    assert_eq!(drawn[1].tokens, (0..5).map(token).collect::<Vec<_>>());
    assert_eq!(drawn[0].finish, Some(FinishReason::Stop(token(9))));
    assert!(drawn[1].finish.is_none());
    assert_eq!((drawn[0].numerics, drawn[1].numerics), (None, Some(numerics)));
    // It goes on where it was.
    found[0].entry.recorder(1).token(&token(5), None);
    drop(found);
    journal.close();
    let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
    assert_eq!(found[0].drawn[1].tokens.len(), 6);
    assert_eq!(found[0].drawn[1].numerics, Some(numerics));
    drop(found);
    journal.close();
    let (journal, found) = Journal::open(&folder, "another", BOUNDS).unwrap();
    assert!(found.is_empty(), "tokens of another model are of no use");
    journal.close();
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn a_request_that_is_written_outlives_a_killed_process() {
    let (folder, killed) = (folder("written"), folder("killed"));
    let (journal, _) = Journal::open(&folder, "m", BOUNDS).unwrap();
    let mut entries = Vec::new();
    for n in 0..50 {
        let entry = journal.begin(opened(&n.to_string()), false).unwrap();
        entry.written().await;
        entries.push(entry);
        // The file as a process that is killed here leaves it.
        std::fs::copy(folder.join(FILE), killed.join(FILE)).unwrap();
        let (left, found) = Journal::open(&killed, "m", BOUNDS).unwrap();
        assert_eq!(found.len(), n + 1);
        drop(found);
        left.close();
    }
    drop(entries);
    journal.close();
    std::fs::remove_dir_all(folder).unwrap();
    std::fs::remove_dir_all(killed).unwrap();
}

#[test]
fn a_line_that_was_cut_off_costs_nothing_before_it() {
    let folder = folder("torn");
    let (journal, _) = Journal::open(&folder, "m", BOUNDS).unwrap();
    let entry = journal.begin(opened("a"), false).unwrap();
    (0..3).for_each(|id| entry.recorder(0).token(&token(id), None));
    drop(entry);
    journal.close();
    let path = folder.join(FILE);
    let whole = std::fs::read(&path).unwrap();
    for cut in (0..whole.len()).rev().step_by(7) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
        if let Some(request) = found.first() {
            let tokens = &request.drawn[0].tokens;
            let expected: Vec<_> = (0..tokens.len() as u32).map(token).collect();
            assert_eq!(*tokens, expected);
        }
        drop(found);
        journal.close();
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// A journal of three requests of two sequences each, with tokens of all in turn, and its lines.
fn three_requests(folder: &Path) -> Vec<String> {
    let (journal, _) = Journal::open(folder, "m", BOUNDS).unwrap();
    let entries = ["a", "b", "c"].map(|id| journal.begin(opened(id), false).unwrap());
    let numerics = Numerics::of_layers([1]);
    for at in 0..4 {
        for (entry, request) in entries.iter().zip(0..) {
            for sequence in 0..2 {
                let drawn =
                    SampledToken { mu: Some(1.5), ..token(10 * request + 4 * sequence + at) };
                let of = entry.recorder(sequence as usize);
                of.token(&drawn, (at == 0).then_some(numerics));
            }
        }
    }
    entries[1].recorder(0).finished(&FinishReason::Stop(token(99)));
    drop(entries);
    journal.close();
    let text = std::fs::read_to_string(folder.join(FILE)).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The sequences of each request after a restart: the ids that they had drawn, by the stream's name.
fn back(folder: &Path, lines: &[String]) -> BTreeMap<String, Vec<Vec<u32>>> {
    let path = folder.join(FILE);
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    let found = file::read(&path, "m", BOUNDS).unwrap().requests;
    let ids = |drawn: &Drawn| drawn.tokens.iter().map(|token| token.id).collect();
    let of = |old: records::Old| (old.opened.id, old.drawn.iter().map(ids).collect());
    found.into_values().map(of).collect()
}

#[test]
fn a_new_request_takes_no_live_ones_number() {
    let folder = folder("numbers");
    let lines = three_requests(&folder).map_numbers(u64::MAX);
    let all = back(&folder, &lines);
    assert_eq!(all.len(), 3);
    let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
    let new = ["d", "e", "f"].map(|id| journal.begin(opened(id), false).unwrap());
    assert_eq!(journal.state().live.len(), 6);
    drop((new, found));
    journal.close();
    assert_eq!(file::read(&folder.join(FILE), "m", BOUNDS).unwrap().requests.len(), 6);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Lines of a file of the release before, with numbers that end at the greatest.
trait MapNumbers {
    fn map_numbers(self, greatest: u64) -> Vec<String>;
}

impl MapNumbers for Vec<String> {
    fn map_numbers(self, greatest: u64) -> Vec<String> {
        let mapped = |line: String| {
            let mut line: Value = serde_json::from_str(&line).unwrap();
            let fields = line.as_object_mut().unwrap();
            fields.remove("sum");
            if let Some(version) = fields.get_mut("brigade_journal") {
                *version = 1.into();
            }
            for record in fields.values_mut().filter_map(Value::as_object_mut) {
                let no = record["no"].as_u64().unwrap();
                record["no"] = (greatest - 2 + no).into();
            }
            line.to_string()
        };
        self.into_iter().map(mapped).collect()
    }
}

/// Each place of a record where a value is: keys and indexes that lead there.
fn places(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            out.push(format!("{at}/{name}"));
            places(value, &format!("{at}/{name}"), out);
        }),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, value)| {
            out.push(format!("{at}/{i}"));
            places(value, &format!("{at}/{i}"), out);
        }),
        _ => {}
    }
}

/// A line with another value at a place, or without it.
fn with_damage(line: &Value, place: &str, damage: Option<&Value>) -> Value {
    let (parent, name) = place.rsplit_once('/').unwrap();
    let mut damaged = line.clone();
    match (damage, damaged.pointer_mut(parent).unwrap()) {
        (Some(value), Value::Object(fields)) => drop(fields.insert(name.to_owned(), value.clone())),
        (None, Value::Object(fields)) => drop(fields.remove(name)),
        (Some(value), Value::Array(items)) => {
            items[name.parse::<usize>().unwrap()] = value.clone();
        }
        (None, Value::Array(items)) => drop(items.remove(name.parse().unwrap())),
        _ => unreachable!("fields are in objects and lists"),
    }
    damaged
}

#[test]
fn a_damaged_field_costs_its_own_request_at_most() {
    let folder = folder("fields");
    let whole = three_requests(&folder);
    let all = back(&folder, &whole);
    assert_eq!(all.len(), 3);
    // Files of the release before have no sums: there the checks of the fields are all there is.
    let without_sums = |line: &String| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if line.get("brigade_journal").is_some() {
            line["brigade_journal"] = json!(1);
        }
        line.as_object_mut().unwrap().remove("sum");
        line.to_string()
    };
    // And one header.
    let old: Vec<String> = whole[1..].iter().map(without_sums).collect();
    assert_eq!(back(&folder, &old), all);
    let damages = [json!(0), json!(u64::MAX), json!("x"), json!([[]]), json!(null), json!(-1.5)];
    let (mut tried, mut whole_back) = (0, 0);
    for (lines, has_sums) in [(&whole, true), (&old, false)] {
        // The headers, one of each record, and the last.
        let n_headers = lines.len() - old.len() + 1;
        let records = [1, 4, 9].map(|record| n_headers + record);
        for at in (0..n_headers).chain(records).chain([lines.len() - 1]) {
            let line: Value = serde_json::from_str(&lines[at]).unwrap();
            let mut all_places = Vec::new();
            places(&line, "", &mut all_places);
            for place in all_places {
                for damage in damages.iter().map(Some).chain([None]) {
                    let damaged = with_damage(&line, place.as_str(), damage);
                    if damaged == line {
                        continue;
                    }
                    let mut lines = lines.clone();
                    lines[at] = damaged.to_string();
                    let found = back(&folder, &lines);
                    tried += 1;
                    if at < n_headers {
                        // The model is known from the other header, where there is one.
                        let is_lost = !has_sums && found.is_empty();
                        assert!(is_lost || found == all, "{place}: {damage:?}");
                        continue;
                    }
                    let lost = all.iter().filter(|(id, drawn)| found.get(*id) != Some(drawn));
                    let lost: Vec<_> = lost.map(|(id, _)| id.clone()).collect();
                    assert!(lost.len() <= 1 || !has_sums, "{place}, {damage:?}: {lost:?}");
                    // With checksums, the tokens that are left of the damaged request are its own too.
                    for (id, drawn) in found.iter().filter(|_| has_sums) {
                        let begins = |(had, has): (&Vec<u32>, &Vec<u32>)| had.starts_with(has);
                        let is_own = all[id].iter().zip(drawn).all(begins);
                        assert!(is_own, "{place}, {damage:?}: {id} has {drawn:?}");
                    }
                    whole_back += usize::from(lost.is_empty());
                }
            }
        }
    }
    println!("{tried} damages of fields: nothing was lost by {whole_back}");
    assert!(tried > 500);
    assert!(folder.join(FILE).with_extension("damaged").exists(), "what was damaged is kept");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn bytes_that_are_no_text_end_no_reading() {
    let folder = folder("bytes");
    let whole = three_requests(&folder);
    let all = back(&folder, &whole);
    let text = whole.join("\n") + "\n";
    let mut n_whole = 0;
    for at in (0..text.len()).step_by(97) {
        let mut bytes = text.clone().into_bytes();
        bytes[at] = 0xff;
        std::fs::write(folder.join(FILE), &bytes).unwrap();
        let found = file::read(&folder.join(FILE), "m", BOUNDS).unwrap().requests;
        let found_whole = found.values().filter(|found| {
            let ids = |drawn: &Drawn| drawn.tokens.iter().map(|t| t.id).collect::<Vec<_>>();
            let drawn: Vec<_> = found.drawn.iter().map(ids).collect();
            all.get(&found.opened.id) == Some(&drawn)
        });
        let n = found_whole.count();
        // The end of a line is a byte of two.
        let n_lines = if text.as_bytes()[at] == b'\n' { 2 } else { 1 };
        assert!(n + n_lines >= 3, "byte {at}: {n} of 3 requests are whole");
        n_whole += n;
        let kept = folder.join(FILE).with_extension("damaged");
        assert_eq!(std::fs::read(&kept).unwrap(), bytes, "the damaged file is kept");
    }
    println!("{n_whole} requests of 3 in each of {} files", text.len().div_ceil(97));
    // A file system that lost power leaves zeros.
    let zeros = vec![0; text.len()];
    std::fs::write(folder.join(FILE), &zeros).unwrap();
    assert!(file::read(&folder.join(FILE), "m", BOUNDS).unwrap().requests.is_empty());
    assert_eq!(std::fs::read(folder.join(FILE).with_extension("damaged")).unwrap(), zeros);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_key_that_fills_the_journal_leaves_room_to_others() {
    let folder = folder("greedy");
    let (journal, _) = Journal::open(&folder, "m", BOUNDS).unwrap();
    let body = "x".repeat(15 << 20);
    let of = |owner| Opened { owner: Some(owner), body: body.clone(), ..opened("large") };
    let begun = (0..100).map_while(|_| journal.begin(of(1), true).ok()).collect::<Vec<_>>();
    let refused = journal.begin(opened_of(1), true).unwrap_err();
    println!("the greedy key: {} requests of 15 MiB, then {refused}", begun.len());
    assert!(refused.is_own && begun.len() <= 5, "{}", begun.len());
    let polite = journal.begin(of(2), true).unwrap();
    let (tokens, noted) = (polite.recorder(0), journal.state().noted);
    tokens.token(&token(1), None);
    assert!(journal.state().noted > noted, "the polite key's tokens are noted");
    let noted = journal.state().noted;
    begun[0].recorder(0).token(&token(1), None);
    assert_eq!(journal.state().noted, noted, "those of the greedy one have no room");
    begun.iter().for_each(Entry::over);
    assert!(journal.begin(opened_of(1), true).is_ok());
    drop((begun, polite));
    journal.close();
    std::fs::remove_dir_all(folder).unwrap();
}

fn opened_of(owner: u64) -> Opened {
    Opened { owner: Some(owner), ..opened("small") }
}

#[test]
fn what_is_over_does_not_fill_the_disk() {
    let folder = folder("bounded");
    let (journal, _) = Journal::open(&folder, "m", BOUNDS).unwrap();
    let kept = journal.begin(opened("kept"), false).unwrap();
    let body = "x".repeat(1 << 20);
    for _ in 0..20 {
        let large = Opened { body: body.clone(), ..opened("large") };
        journal.begin(large, false).unwrap().over();
        std::thread::sleep(2 * WRITE_EVERY);
    }
    drop(kept);
    journal.close();
    let bytes = std::fs::metadata(folder.join(FILE)).unwrap().len();
    println!("{bytes} bytes are left of 20 MiB");
    assert!(bytes < 2 * MAX_WASTE_BYTES, "{bytes}");
    let (journal, found) = Journal::open(&folder, "m", BOUNDS).unwrap();
    assert_eq!(found.len(), 1);
    drop(found);
    journal.close();
    std::fs::remove_dir_all(folder).unwrap();
}
