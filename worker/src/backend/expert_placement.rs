//! The place of a stage's routed experts where a worker has a GPU: as its options or a coordinator say.

use brigade_engine::device::{DeviceName, DeviceWish, split_beside};

/// All layers, on the wire and to the engine.
pub const ALL_LAYERS: u32 = u32::MAX;

/// Where routed experts are, beside a GPU that computes the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Experts {
    /// All on the GPU.
    #[default]
    Device,
    /// With the host only as far as they do not fit on the GPU.
    Auto,
    /// All with the host.
    Host,
    /// With the host for this many first layers of the model.
    Layers(u32),
}

/// How much of a GPU's memory is for copies of experts that lie with the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertCache {
    /// So many bytes, which no plan has for anything else.
    Bytes(u64),
    /// What each stage leaves of its worker's memory, but for [`SLACK`]. It is of no part of the plan.
    Rest,
}

/// Of a worker's memory, one in so many parts stays free beside [`ExpertCache::Rest`]: memory is taken in larger pieces than
/// was asked for.
const SLACK: u64 = 20;

impl ExpertCache {
    /// The word for [`ExpertCache::Rest`].
    pub const AUTO: &str = "auto";

    /// Bytes that are kept from plans.
    pub fn set_aside(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Rest => 0,
        }
    }

    /// Bytes for the copies of a stage that leaves so many of its worker's `limit`.
    pub fn room(self, left: u64, limit: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Rest => left.saturating_sub(limit / SLACK),
        }
    }
}

/// An invalid option, with its value and the problem.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) option: &'static str,
    pub(crate) value: String,
    pub(crate) problem: String,
}

/// Options about devices and experts, as typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Raw<'a> {
    /// `--device`.
    pub(crate) device: Option<&'a str>,
    /// `--kernels`.
    pub(crate) kernels: Option<&'a str>,
    /// `--fast-math`.
    pub(crate) fast_math: bool,
    /// `--experts`.
    pub(crate) experts: Option<&'a str>,
    /// `--cpu-moe`.
    pub(crate) cpu_moe: bool,
    /// `--n-cpu-moe`.
    pub(crate) n_cpu_moe: Option<u32>,
}

impl Experts {
    /// The number of first layers whose experts are with the host where a coordinator does not say.
    pub fn unless_told(self) -> u32 {
        match self {
            Self::Device | Self::Auto => 0,
            Self::Host => ALL_LAYERS,
            Self::Layers(n) => n,
        }
    }

    /// The same number for the planner, of a worker that may have experts with the host; `None`: as few as do not fit
    /// on the GPU.
    pub fn before(self) -> Option<u32> {
        (self != Self::Auto).then(|| self.unless_told())
    }

    /// The meaning of the options with this `device`. `has_beside`: the device was named with `+cpu` behind it.
    ///
    /// # Errors
    /// The options contradict each other, or one has an invalid value.
    fn read(raw: &Raw<'_>, device: &DeviceWish, has_beside: bool) -> Result<Self, Wrong> {
        let fast_math = raw.fast_math;
        let wrong = |option, value: &str, problem: &str| {
            let (value, problem) = (value.to_owned(), problem.to_owned());
            Err(Wrong { option, value, problem })
        };
        let n_given = [raw.experts.is_some(), raw.cpu_moe, raw.n_cpu_moe.is_some()];
        if n_given.into_iter().filter(|given| *given).count() > 1 {
            let problem = "say the same thing in three ways: give one of --experts, --cpu-moe and --n-cpu-moe";
            return wrong("--experts", raw.experts.unwrap_or_default(), problem);
        }
        let wish = match (raw.experts, raw.n_cpu_moe) {
            _ if raw.cpu_moe => Some(Self::Host),
            (_, Some(n)) => Some(Self::Layers(n)),
            (Some("auto"), _) => Some(Self::Auto),
            (Some("device"), _) => Some(Self::Device),
            (Some("host"), _) => Some(Self::Host),
            (Some(text), _) => match text.parse() {
                Ok(n) => Some(Self::Layers(n)),
                Err(_) => {
                    let problem = "is not auto, device, host, or a number of layers";
                    return wrong("--experts", text, problem);
                }
            },
            (None, None) => None,
        };
        let is_open = has_beside || *device == DeviceWish::Auto;
        let wish = wish.unwrap_or(if is_open { Self::Auto } else { Self::Device });
        if matches!(device, DeviceWish::Named(DeviceName::Cpu(_))) {
            // All is in the host's memory.
            return Ok(Self::Device);
        }
        match wish {
            Self::Auto if fast_math => Ok(Self::Device),
            Self::Host | Self::Layers(1..) if fast_math => {
                let problem = "has products on the GPU with other bits than those of experts with the host: leave out one of \
                               --fast-math and the experts' option";
                wrong("--fast-math", "", problem)
            }
            wish => Ok(wish),
        }
    }
}

/// The device that computes, or the CPU with the named kernel table; and the place of experts beside a GPU.
///
/// # Errors
/// There is no such device, or options contradict each other.
pub(crate) fn device_of(raw: &Raw<'_>) -> Result<(DeviceWish, Experts), Wrong> {
    let wrong = |value: &str, problem: String| {
        let value = value.to_owned();
        Wrong { option: "--device", value, problem }
    };
    let named = raw.device.unwrap_or_default();
    let (name, has_beside) = split_beside(named).map_err(|problem| wrong(named, problem))?;
    let wish = raw.device.map(|_| name.parse::<DeviceWish>()).transpose();
    let wish = match (wish.map_err(|problem| wrong(named, problem))?, raw.kernels) {
        (Some(DeviceWish::Named(name)), Some(kernels)) if !name.is_cpu() => {
            let problem = format!("has its own kernels: leave out --kernels {kernels}");
            return Err(wrong(&name.to_string(), problem));
        }
        (_, Some(kernels)) => DeviceWish::Named(DeviceName::Cpu(Some(kernels.to_owned()))),
        (wish, None) => wish.unwrap_or_default(),
    };
    let experts = Experts::read(raw, &wish, has_beside)?;
    Ok((wish, experts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_have_what_was_set_aside_or_what_is_left_but_for_some() {
        let given = ExpertCache::Bytes(7);
        assert_eq!((given.set_aside(), given.room(1000, 4000)), (7, 7));
        assert_eq!((ExpertCache::Rest.set_aside(), ExpertCache::Rest.room(1000, 4000)), (0, 800));
        assert_eq!(ExpertCache::Rest.room(150, 4000), 0);
    }

    #[test]
    fn options_are_read_as_people_type_them() {
        let gpu: DeviceWish = "vulkan:0".parse().unwrap();
        let read = |raw: Raw<'_>| Experts::read(&raw, &gpu, false).unwrap();
        let said = |text| Raw { experts: Some(text), ..Raw::default() };
        assert_eq!(read(Raw::default()), Experts::Device);
        assert_eq!(read(Raw { cpu_moe: true, ..Raw::default() }), Experts::Host);
        let n = Raw { n_cpu_moe: Some(7), ..Raw::default() };
        assert_eq!(read(n), Experts::Layers(7));
        for (text, experts) in [
            ("auto", Experts::Auto),
            ("device", Experts::Device),
            ("host", Experts::Host),
            ("12", Experts::Layers(12)),
        ] {
            assert_eq!(read(said(text)), experts, "{text}");
        }
        let plain = Raw::default();
        let fast = Raw { fast_math: true, ..plain };
        assert_eq!(Experts::read(&plain, &gpu, true).unwrap(), Experts::Auto, "+cpu");
        assert_eq!(Experts::read(&plain, &DeviceWish::Auto, false).unwrap(), Experts::Auto);
        assert_eq!(Experts::read(&fast, &gpu, true).unwrap(), Experts::Device);
        let cpu: DeviceWish = "cpu".parse().unwrap();
        assert_eq!(Experts::read(&said("host"), &cpu, false).unwrap(), Experts::Device);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let gpu: DeviceWish = "vulkan:0".parse().unwrap();
        let refused = |raw: Raw<'_>, fast_math| {
            let wrong = Experts::read(&Raw { fast_math, ..raw }, &gpu, false).unwrap_err();
            format!("{} {}", wrong.option, wrong.problem)
        };
        let said = |text| Raw { experts: Some(text), ..Raw::default() };
        for text in ["", "-1", "all", "4294967296"] {
            assert!(refused(said(text), false).contains("is not auto, device, host"), "{text}");
        }
        assert!(refused(Raw { cpu_moe: true, ..said("auto") }, false).contains("give one"));
        assert!(refused(said("3"), true).contains("--fast-math"));
    }
}
