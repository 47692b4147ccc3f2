//! Models that requests have fetched: the names that the operator opens, and their room on the disk.
//!
//! They are entries of the lock like all others, with a mark. The least recently used one goes when another one needs its
//! room. Models that an operator has fetched take none of that room, and stay.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::error::HubError;
use super::huggingface::Resolved;
use super::lock::{Entry, Lock, Place, mtime_ns, unix_now};
use super::name::{HubName, ModelName};
use super::own_folder::Own;
use super::part::{NOTE, PART, bytes_of};
use super::pattern::{Pattern, asked};
use super::resolver::{Found, Resolver, Watch, as_resolved, entry_name, own_places};
use super::settings::Settings;
use super::{local_models, stores};

/// A part of a file that nobody has written to for so long is no download that goes on.
const PART_AT_REST_S: u64 = 600;

/// Names that are open to requests, and the disk space for what they mean.
#[derive(Debug)]
pub struct Pulls {
    settings: Settings,
    patterns: Vec<Pattern>,
    budget: u64,
    /// Models that are being fetched.
    begun: Mutex<BTreeMap<String, Begun>>,
}

#[derive(Clone, Debug)]
struct Begun {
    bytes: u64,
    places: Vec<String>,
}

/// What a name means, before it is fetched.
#[derive(Debug)]
pub struct Plan {
    asked: ModelName,
    /// Its name in the lock.
    pub name: String,
    resolved: Resolved,
    places: Vec<String>,
    known: Option<Entry>,
    /// Bytes of its files.
    pub size: u64,
    /// Bytes that it takes in the own folder.
    room: u64,
}

/// Room on the disk that is kept free for a model, until this is dropped.
#[derive(Debug)]
pub struct Room<'p> {
    pulls: &'p Pulls,
    name: String,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.pulls.begun().remove(&self.name);
    }
}

/// A file of a download that has ended.
struct Leftover {
    target: String,
    bytes: u64,
    written_s: u64,
}

impl Pulls {
    /// Opens names to requests. What they have fetched may take `budget` bytes.
    pub fn new(settings: Settings, patterns: Vec<Pattern>, budget: u64) -> Self {
        Self { settings, patterns, budget, begun: Mutex::default() }
    }

    fn begun(&self) -> MutexGuard<'_, BTreeMap<String, Begun>> {
        // It is changed as a whole.
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hub's name that a request means by `text`, if it is open.
    pub fn open(&self, text: &str) -> Option<HubName> {
        asked(text).filter(|name| self.patterns.iter().any(|pattern| pattern.opens(name)))
    }

    /// Models with open names that are on this machine.
    ///
    /// # Errors
    /// The lock cannot be read.
    pub fn here(&self) -> Result<Vec<Found>, HubError> {
        let (resolver, lock) = (self.resolver(&Silent), Lock::read(&self.settings.data_dir)?);
        let mut seen = BTreeSet::new();
        let newest = lock.models.into_iter().rev().filter(|entry| seen.insert(entry.name.clone()));
        let is_open = |entry: &Entry| names(entry).iter().any(|name| self.open(name).is_some());
        let is_here = |entry: &Entry| entry.files.iter().all(|file| resolver.is_there(file));
        let all = newest.filter(|entry| is_open(entry) && is_here(entry));
        let found = |entry: Entry| {
            let name = ModelName::parse(entry.name.as_ref())?;
            resolver.found(&name, entry)
        };
        all.map(found).collect()
    }

    /// Asks what a name means, if that is not known here.
    ///
    /// # Errors
    /// There is no such model, the hub does not answer, or the model is larger than the budget.
    pub fn plan(&self, name: &HubName, watch: &dyn Watch) -> Result<Plan, HubError> {
        let (resolver, name) = (self.resolver(watch), ModelName::Hub(name.clone()));
        let is_there = |entry: &Entry| entry.files.iter().all(|file| resolver.is_there(file));
        let lock = Lock::read(&self.settings.data_dir)?;
        let known = lock.find(&name).filter(|e| is_there(e) || e.own_place().is_some()).cloned();
        if let Some(entry) = known {
            let (resolved, places) = (as_resolved(&name, &entry), own_places(&entry));
            let (shown, size) = (entry.name.clone(), entry.size());
            let room = if is_there(&entry) { 0 } else { size };
            return self.checked(Plan {
                asked: name,
                name: shown,
                resolved,
                places,
                known: Some(entry),
                size,
                room,
            });
        }
        let resolved = resolver.asked(&name)?;
        let places = resolver.own.places(&name, &resolved)?;
        let is_begun = |place: &String| resolver.own.path(place).is_ok_and(|p| bytes_of(&p) > 0);
        let is_elsewhere = !places.iter().any(is_begun)
            && stores::lookup(&self.settings, &name, &resolved).is_some();
        let size = resolved.choice.files.iter().map(|file| file.size).sum();
        let room = if is_elsewhere { 0 } else { size };
        let (shown, known) = (entry_name(&name, &resolved), None);
        self.checked(Plan { asked: name, name: shown, resolved, places, known, size, room })
    }

    fn checked(&self, plan: Plan) -> Result<Plan, HubError> {
        let Plan { name, size, room, .. } = &plan;
        if *room > self.budget {
            let (name, size, budget) = (name.clone(), *size, self.budget);
            return Err(HubError::OverBudget { name, size, budget });
        }
        Ok(plan)
    }

    /// Makes room for a model: ends of downloads go first, and then models, those that are not loaded first, and of these the least
    /// recently used one. `used` says whether a model is loaded, and when it was last used. `let_go` is asked before a model
    /// goes, and says whether it may.
    ///
    /// # Errors
    /// What would have to go is in use, or cannot be deleted.
    pub fn make_room(
        &self,
        plan: &Plan,
        used: &dyn Fn(&Entry) -> (bool, u64),
        let_go: &dyn Fn(&str) -> bool,
    ) -> Result<Room<'_>, HubError> {
        let own = Own::new(&self.settings.folder);
        let mut begun = self.begun();
        let mut stays = BTreeSet::new();
        loop {
            let others: Vec<&Begun> =
                begun.iter().filter(|(name, _)| **name != plan.name).map(|(_, b)| b).collect();
            let busy: BTreeSet<&String> =
                others.iter().flat_map(|b| &b.places).chain(&plan.places).collect();
            let mut groups = self.groups()?;
            let mut sizes = BTreeMap::new();
            for file in groups.iter().flatten().flat_map(|entry| &entry.files) {
                if let Place::Own(place) = &file.place {
                    sizes.insert(place.clone(), file.size);
                }
            }
            sizes.retain(|place, _| !busy.contains(place));
            let left: Vec<Leftover> = self.leftovers(&own, &busy);
            let taken = others.iter().map(|b| b.bytes).sum::<u64>()
                + sizes.values().sum::<u64>()
                + left.iter().map(|left| left.bytes).sum::<u64>();
            if plan.room == 0 || taken.saturating_add(plan.room) <= self.budget {
                let (name, places) = (plan.name.clone(), plan.places.clone());
                begun.insert(name.clone(), Begun { bytes: plan.room, places });
                return Ok(Room { pulls: self, name });
            }
            if self.drop_one(&own, left, &mut stays) {
                continue;
            }
            groups.sort_by_key(|group| group.iter().map(used).max());
            let may_go = |entry: &Entry| {
                let is_of_it = own_places(entry).iter().any(|place| plan.places.contains(place));
                entry.name != plan.name && !is_of_it && !stays.contains(&entry.name)
            };
            groups.retain(|group| group.iter().all(may_go));
            let Some(oldest) = groups.first() else {
                let (name, size) = (plan.name.clone(), plan.size);
                return Err(HubError::BudgetInUse { name, size, budget: self.budget, taken });
            };
            let names: BTreeSet<String> = oldest.iter().map(|entry| entry.name.clone()).collect();
            // What is asked for once and stays is not asked for again.
            stays.extend(names.iter().cloned());
            if names.iter().all(|name| let_go(name)) {
                names.iter().for_each(|name| self.drop_model(name, &plan.name));
            }
        }
    }

    /// Deletes a model that nobody uses, for another one that needs its room.
    fn drop_model(&self, model: &str, by: &str) {
        match local_models::let_go(&self.settings, model) {
            Ok(bytes) => tracing::info!(
                model,
                bytes,
                by,
                "a model that a request had fetched was deleted: another one needs its room"
            ),
            Err(error) => tracing::warn!(%error, "a model that a request had fetched stays"),
        }
    }

    /// Models that requests have fetched, in all their states. Those with a file in common are one group: only all of them
    /// together free it. What shares a file with a model that an operator has fetched takes no room of its own, and is left out.
    fn groups(&self) -> Result<Vec<Vec<Entry>>, HubError> {
        let lock = Lock::read(&self.settings.data_dir)?;
        let is_requests = |entry: &Entry| entry.on_request && entry.own_place().is_some();
        let (of_requests, others): (Vec<Entry>, Vec<Entry>) =
            lock.models.into_iter().partition(is_requests);
        let stay: BTreeSet<String> = others.iter().flat_map(own_places).collect();
        let mut groups: Vec<Vec<Entry>> = Vec::new();
        for entry in of_requests {
            let places = own_places(&entry);
            if places.iter().all(|place| stay.contains(place)) {
                continue;
            }
            let has = |other: &Entry| own_places(other).iter().any(|place| places.contains(place));
            let is_kin = |other: &Entry| other.name == entry.name || has(other);
            let (kin, apart): (Vec<_>, Vec<_>) =
                groups.into_iter().partition(|group| group.iter().any(is_kin));
            groups = apart;
            groups.push(kin.into_iter().flatten().chain([entry]).collect());
        }
        Ok(groups)
    }

    /// Ends of downloads of open names that nobody goes on with.
    fn leftovers(&self, own: &Own, busy: &BTreeSet<&String>) -> Vec<Leftover> {
        let of = |(place, meta): (String, std::fs::Metadata)| {
            let target = place.strip_suffix(PART)?.to_owned();
            let mut words = target.split('/');
            let (store, user, repo) = (words.next()?, words.next()?, words.next()?);
            let repo = format!("{user}/{repo}");
            let is_open = self.patterns.iter().any(|pattern| pattern.opens_repo(&repo));
            let (bytes, written_s) = (meta.len(), mtime_ns(&meta) / 1_000_000_000);
            let is_it = store == "hf" && is_open && !busy.contains(&target);
            is_it.then_some(Leftover { target, bytes, written_s })
        };
        own.files().into_iter().filter_map(of).collect()
    }

    /// Deletes the oldest of these that no process writes to.
    fn drop_one(&self, own: &Own, mut left: Vec<Leftover>, stays: &mut BTreeSet<String>) -> bool {
        left.retain(|left| left.written_s + PART_AT_REST_S <= unix_now());
        left.sort_by_key(|left| left.written_s);
        for Leftover { target, .. } in left {
            if stays.insert(target.clone())
                && own.claim(&target, &target).is_ok()
                && own.delete(&format!("{target}{PART}")).is_ok()
            {
                // Where there is none, there is nothing to delete.
                let _ = own.delete(&format!("{target}{NOTE}"));
                return true;
            }
        }
        false
    }

    /// Fetches a model for which there is room. It is in use until the returned file is closed.
    ///
    /// # Errors
    /// It cannot be had. Of a full disk nothing stays; else the part that is there does.
    pub fn fetch(&self, plan: &Plan, watch: &dyn Watch) -> Result<(Found, Option<File>), HubError> {
        let resolver = self.resolver(watch);
        let entry = match &plan.known {
            // Another one may have needed its room in the meantime.
            Some(entry) if plan.room == 0 && !entry.files.iter().all(|f| resolver.is_there(f)) => {
                Err(HubError::Stopped { name: plan.name.clone() })
            }
            Some(entry) if plan.room == 0 => Ok(entry.clone()),
            Some(entry) => resolver
                .fetched(&plan.asked, &plan.resolved, &plan.places)
                .map(|files| Entry { files, ..entry.clone() }),
            None => resolver.obtained(&plan.asked, &plan.resolved, true),
        };
        let entry = entry.inspect_err(|error| {
            let is_full = matches!(error, HubError::NoRoom { .. });
            plan.places.iter().for_each(|place| self.let_go_of_part(place, is_full));
        })?;
        Lock::touch(&self.settings.data_dir, &entry);
        let held = entry.own_place().and_then(|place| resolver.own.held(place));
        Ok((resolver.found(&plan.asked, entry)?, held))
    }

    /// Deletes the part of a file that did not come whole if others need the disk, and else if nothing of it is there. Folders
    /// that are empty go with it.
    fn let_go_of_part(&self, place: &str, is_full: bool) {
        let own = Own::new(&self.settings.folder);
        if is_full || own.path(place).is_ok_and(|path| bytes_of(&path) == 0) {
            // Not all of them have been begun.
            let _ = (own.delete(&format!("{place}{PART}")), own.delete(&format!("{place}{NOTE}")));
            own.delete_empty_folders(place);
        }
    }

    /// Marks a model of this machine as in use, until the file is closed.
    pub fn hold(&self, found: &Found) -> Option<File> {
        Own::new(&self.settings.folder).held(found.entry.own_place()?)
    }

    /// Notes that a model was used now.
    pub fn touch(&self, entry: &Entry) {
        Lock::touch(&self.settings.data_dir, entry);
    }

    fn resolver<'a>(&'a self, watch: &'a dyn Watch) -> Resolver<'a> {
        Resolver::on_request(&self.settings, watch)
    }
}

/// All names that mean this model.
pub fn names(entry: &Entry) -> Vec<String> {
    let mut all = vec![entry.name.clone()];
    if let Some((repo, quant)) = entry.name.rsplit_once(':') {
        // A name without a quantisation, and one that leaves out what the hub calls dynamic.
        let usual = entry.usual.then(|| repo.to_owned());
        all.extend(
            usual.into_iter().chain(quant.strip_prefix("UD-").map(|q| format!("{repo}:{q}"))),
        );
    }
    all
}

/// Nobody looks.
struct Silent;

impl Watch for Silent {
    fn say(&self, _text: &str) {}

    fn show(&self, _what: &str, _done: u64, _total: u64) {}
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::choice::Choice;
    use crate::hash::of_text;
    use crate::lock::LockedFile;

    /// Bytes of each model here.
    const SIZE: u64 = 10;

    struct Scratch(PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            // The folder is temporary: the system removes what is left.
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn scratch(name: &str) -> (Scratch, Settings) {
        let dir = std::env::temp_dir().join(format!("brigade-pulls-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let settings = Settings::from_env(dir.join("own"), dir.join("data"), &|_| None);
        (Scratch(dir), settings)
    }

    fn pulls(settings: &Settings, budget: u64) -> Pulls {
        Pulls::new(settings.clone(), vec!["hf:u/*".parse().unwrap()], budget)
    }

    fn place_of(quant: &str) -> String {
        format!("hf/u/r/c/{quant}.gguf")
    }

    fn write(settings: &Settings, place: &str, bytes: u64) -> PathBuf {
        let path = settings.folder.join(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, vec![0; bytes as usize]).unwrap();
        path
    }

    /// A model that is here, and was used at this second.
    fn put(settings: &Settings, quant: &str, last_used: u64, on_request: bool) {
        write(settings, &place_of(quant), SIZE);
        let place = Place::Own(place_of(quant));
        let file = LockedFile { url: String::new(), size: SIZE, sha256: of_text(quant), place };
        let (name, commit) = (format!("hf:u/r:{quant}"), "c".to_owned());
        let (quant, licence, usual) = (quant.to_owned(), None, quant == "Q8_0");
        let files = vec![file];
        let entry = Entry { name, usual, commit, licence, quant, last_used, on_request, files };
        Lock::update(&settings.data_dir, |lock| lock.put(entry)).unwrap();
    }

    fn plan(quant: &str, size: u64) -> Plan {
        let name = format!("hf:u/r:{quant}");
        let choice = Choice { quant: quant.to_owned(), files: Vec::new() };
        let (commit, licence, urls) = ("c".to_owned(), None, Vec::new());
        Plan {
            asked: ModelName::parse(Path::new(&name)).unwrap(),
            name,
            resolved: Resolved { commit, licence, choice, urls },
            places: vec![place_of(quant)],
            known: None,
            size,
            room: size,
        }
    }

    fn here(pulls: &Pulls) -> Vec<String> {
        let mut names: Vec<String> =
            pulls.here().unwrap().into_iter().map(|found| found.entry.name).collect();
        names.sort();
        names
    }

    fn by_time(entry: &Entry) -> (bool, u64) {
        (false, entry.last_used)
    }

    #[test]
    fn what_was_used_least_recently_goes_and_what_an_operator_has_fetched_stays() {
        let (_scratch, settings) = scratch("lru");
        for (quant, used, on_request) in
            [("Q8_0", 3, true), ("Q6_K", 1, true), ("Q5_0", 2, true), ("F16", 0, false)]
        {
            put(&settings, quant, used, on_request);
        }
        let pulls = pulls(&settings, 3 * SIZE);
        let room = pulls.make_room(&plan("Q4_0", SIZE), &by_time, &|_| true).unwrap();
        assert_eq!(here(&pulls), ["hf:u/r:F16", "hf:u/r:Q5_0", "hf:u/r:Q8_0"]);
        // What is being fetched has its room, so the next one needs that of another.
        let second = pulls.make_room(&plan("Q3_K", SIZE), &by_time, &|_| true).unwrap();
        assert_eq!(here(&pulls), ["hf:u/r:F16", "hf:u/r:Q8_0"]);
        drop((room, second));
        let _room = pulls.make_room(&plan("Q2_K", 2 * SIZE), &by_time, &|_| true).unwrap();
        assert_eq!(here(&pulls), ["hf:u/r:F16", "hf:u/r:Q8_0"], "there is room again");
    }

    #[test]
    fn what_is_loaded_goes_last_and_what_is_in_use_stays() {
        let (_scratch, settings) = scratch("loaded");
        for (quant, used) in [("Q8_0", 1), ("Q6_K", 2), ("Q5_0", 3)] {
            put(&settings, quant, used, true);
        }
        let pulls = pulls(&settings, 3 * SIZE);
        let used = |entry: &Entry| (entry.quant == "Q8_0", entry.last_used);
        let may_go = |name: &str| name != "hf:u/r:Q6_K";
        let room = pulls.make_room(&plan("Q4_0", SIZE), &used, &may_go).unwrap();
        assert_eq!(here(&pulls), ["hf:u/r:Q6_K", "hf:u/r:Q8_0"]);
        drop(room);
        let refused = pulls.make_room(&plan("Q4_0", 3 * SIZE), &used, &may_go).unwrap_err();
        assert!(
            matches!(refused, HubError::BudgetInUse { taken, .. } if taken == SIZE),
            "{refused}"
        );
        // A process that uses a model keeps it, too.
        let found = pulls.here().unwrap();
        let held = pulls.hold(&found[0]);
        assert!(held.is_some() && here(&pulls) == ["hf:u/r:Q6_K"]);
        pulls.make_room(&plan("Q4_0", 3 * SIZE), &used, &|_| true).unwrap_err();
        drop(held);
        pulls.make_room(&plan("Q4_0", 3 * SIZE), &used, &|_| true).unwrap();
        assert_eq!(here(&pulls), [] as [String; 0]);
    }

    #[test]
    fn names_of_one_file_go_together_or_not_at_all() {
        let (_scratch, settings) = scratch("kin");
        put(&settings, "Q8_0", 1, true);
        put(&settings, "Q6_K", 2, true);
        // The same file by another name, which was used last.
        let also = |quant: &str, of: &str, last_used: u64, on_request: bool| {
            let lock = Lock::read(&settings.data_dir).unwrap();
            let entry = lock.models.iter().find(|entry| entry.quant == of).unwrap().clone();
            let (name, quant) = (format!("hf:u/r:{quant}"), quant.to_owned());
            let entry = Entry { name, quant, usual: false, last_used, on_request, ..entry };
            Lock::update(&settings.data_dir, |lock| lock.put(entry)).unwrap();
        };
        also("UD-Q8_0", "Q8_0", 9, true);
        let pulls = pulls(&settings, 2 * SIZE);
        let asked = std::cell::RefCell::default();
        let note = |name: &str| {
            let all: &mut Vec<String> = &mut asked.borrow_mut();
            all.push(name.to_owned());
            true
        };
        drop(pulls.make_room(&plan("Q4_0", SIZE), &by_time, &note).unwrap());
        assert_eq!(
            asked.take(),
            ["hf:u/r:Q6_K"],
            "the other file was used later, by one of its names"
        );
        let busy = |name: &str| name != "hf:u/r:UD-Q8_0";
        pulls.make_room(&plan("Q4_0", 2 * SIZE), &by_time, &busy).unwrap_err();
        assert_eq!(here(&pulls), ["hf:u/r:Q8_0", "hf:u/r:UD-Q8_0"]);
        drop(pulls.make_room(&plan("Q4_0", 2 * SIZE), &by_time, &note).unwrap());
        assert_eq!(asked.take(), ["hf:u/r:Q8_0", "hf:u/r:UD-Q8_0"]);
        assert_eq!(here(&pulls), [] as [String; 0]);
        // What shares its file with an operator's model frees nothing, and takes nothing.
        put(&settings, "Q5_0", 1, true);
        also("UD-Q5_0", "Q5_0", 1, false);
        drop(pulls.make_room(&plan("Q4_0", 2 * SIZE), &by_time, &note).unwrap());
        assert_eq!(asked.take(), [] as [String; 0]);
        assert_eq!(here(&pulls), ["hf:u/r:Q5_0", "hf:u/r:UD-Q5_0"]);
    }

    #[test]
    fn ends_of_downloads_of_open_names_take_room_and_go_first() {
        let (_scratch, settings) = scratch("parts");
        put(&settings, "Q8_0", 1, true);
        let part = |place: &str, age_s: u64| {
            let path = write(&settings, place, SIZE);
            let then = SystemTime::now() - Duration::from_secs(age_s);
            fs::File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
            path
        };
        let old = part("hf/u/r/c/Q6_K.gguf.part", PART_AT_REST_S + 60);
        let note = write(&settings, "hf/u/r/c/Q6_K.gguf.part.json", 1);
        let fresh = part("hf/u/r/c/Q5_0.gguf.part", 0);
        let foreign = part("hf/v/r/c/Q5_0.gguf.part", PART_AT_REST_S + 60);
        let own = part("hf/u/r/c/Q4_0.gguf.part", PART_AT_REST_S + 60);
        let pulls = pulls(&settings, 3 * SIZE);
        let room = pulls.make_room(&plan("Q4_0", SIZE), &by_time, &|_| true).unwrap();
        assert!(!old.exists() && !note.exists() && fresh.exists() && foreign.exists());
        assert!(own.exists(), "a download goes on with its part");
        assert_eq!(here(&pulls), ["hf:u/r:Q8_0"]);
        drop(room);
    }

    #[test]
    fn a_model_has_all_names_that_mean_it() {
        let (_scratch, settings) = scratch("names");
        put(&settings, "Q8_0", 1, true);
        put(&settings, "UD-Q4_K_XL", 1, true);
        let entries: Vec<Entry> =
            pulls(&settings, 0).here().unwrap().into_iter().map(|found| found.entry).collect();
        let mut all: Vec<Vec<String>> = entries.iter().map(names).collect();
        all.sort();
        assert_eq!(all[0], ["hf:u/r:Q8_0", "hf:u/r"]);
        assert_eq!(all[1], ["hf:u/r:UD-Q4_K_XL", "hf:u/r:Q4_K_XL"]);
        // Names that are not open any more are not listed.
        let other = Pulls::new(settings, vec!["hf:v/*".parse().unwrap()], 0);
        assert_eq!(here(&other), [] as [String; 0]);
    }
}
