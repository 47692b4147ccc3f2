//! Answers whether some members have memory enough for the model. The planner is asked once for each question: a
//! set of members with what their nodes have, and a context. Its last answers are remembered.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use brigade_plan::{ModelFacts, NodeFacts, least_bytes};

use crate::building::{demands, place};
use crate::config::StageOptions;
use crate::members::conn::Conn;
use crate::members::member::Member;
use crate::members::node_memory;
use crate::reconcile::MemberId;
use brigade_line::model::Model;

/// Answers remembered; more are forgotten all at once.
const MAX_ANSWERS: usize = 64;

/// A question: whether a line over these members fits.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Question {
    /// Positions that the line's context must have; `None`: the planner's smallest useful one.
    least_ctx: Option<u32>,
    /// Each member with the serial number of its connection: a worker that came back may have other memory.
    members: Vec<(MemberId, u64)>,
    /// What the members' nodes leave to the line.
    nodes: Vec<Option<NodeFacts>>,
}

/// A cache of the planner's answers.
#[derive(Debug)]
pub struct Fits {
    model: Arc<Model>,
    options: StageOptions,
    answers: HashMap<Question, Result<(), String>>,
    /// `None` where the planner cannot read the model; it says why when it is asked.
    facts: Option<ModelFacts>,
}

impl Fits {
    /// A cache for lines of `model`.
    pub fn new(model: Arc<Model>, options: StageOptions) -> Self {
        let facts = model.facts(place::engine_kv(options.kv_type)).ok();
        Self { model, options, answers: HashMap::new(), facts }
    }

    /// Bytes that the model takes at least over so many workers; 0 where that cannot be told.
    pub fn bytes_over(&self, workers: usize) -> u64 {
        let settings = demands::settings(&self.model, &self.options);
        self.facts.as_ref().map_or(0, |facts| least_bytes(facts, &settings, workers))
    }

    /// Checks that a line over these members, all connected, could be built, if only with the planner's smallest useful
    /// context. Ids of nobody are left out.
    ///
    /// # Errors
    /// Names the missing memory or workers, and a remedy.
    pub fn ask(
        &mut self,
        members: &BTreeMap<MemberId, Member>,
        ids: &[MemberId],
    ) -> Result<(), String> {
        self.ask_for(members, ids, None)
    }

    /// The same as [`Fits::ask`], for a line with a context of `least_ctx` positions at least.
    ///
    /// # Errors
    /// As [`Fits::ask`].
    pub fn ask_for(
        &mut self,
        members: &BTreeMap<MemberId, Member>,
        ids: &[MemberId],
        least_ctx: Option<u32>,
    ) -> Result<(), String> {
        let asked = || ids.iter().filter_map(|id| Some((*id, members.get(id)?)));
        let serials = asked().map(|(id, member)| (id, member.serial())).collect();
        let conns: Vec<&Conn> = asked().filter_map(|(_, member)| member.conn()).collect();
        let nodes = node_memory::nodes_of(&conns);
        let question = Question { least_ctx, members: serials, nodes };
        if let Some(answer) = self.answers.get(&question) {
            return answer.clone();
        }
        let options = StageOptions { least_ctx, ..self.options.clone() };
        let conns = conns.into_iter();
        let planned = place::plan_over_nodes(&self.model, conns, &question.nodes, &[], &options);
        let answer = planned.map(|_| ()).map_err(|error| error.to_string());
        if self.answers.len() == MAX_ANSWERS {
            self.answers.clear();
        }
        self.answers.insert(question, answer.clone());
        answer
    }
}
