//! [`ServiceSet`]: what services a server may have.

use stag_rpc::{FlavorSet, Observed, PanicGuard, ProcedureStatistics, Secured, Service, Services};

/// The services of a server, as a tuple of one to four: `(Echo,)`; such a tuple [`Observed`], which counts Calls by procedure; and either
/// of them [`Secured`] with authentication flavors.
pub trait ServiceSet {
    /// The same, of which a handler's panic costs one Call.
    type Guarded: Services;

    /// Guards each, if `is_on`.
    fn guarded(self, is_on: bool) -> Self::Guarded;

    /// What was counted of each procedure that was called; nothing, unless the services are [`Observed`].
    fn procedures(guarded: &mut Self::Guarded) -> Vec<ProcedureStatistics> {
        let _ = guarded;
        Vec::new()
    }
}

macro_rules! service_set {
    ($($name:ident $place:tt),+) => {
        impl<$($name: Service),+> ServiceSet for ($($name,)+) {
            type Guarded = ($(PanicGuard<$name>,)+);

            fn guarded(self, is_on: bool) -> Self::Guarded {
                ($(PanicGuard::switched(self.$place, is_on),)+)
            }
        }
    };
}

service_set!(A 0);
service_set!(A 0, B 1);
service_set!(A 0, B 1, C 2);
service_set!(A 0, B 1, C 2, D 3);

impl<S: ServiceSet, F: FlavorSet> ServiceSet for Secured<S, F> {
    type Guarded = Secured<S::Guarded, F>;

    fn guarded(self, is_on: bool) -> Self::Guarded {
        self.map(|services| services.guarded(is_on))
    }

    fn procedures(guarded: &mut Self::Guarded) -> Vec<ProcedureStatistics> {
        S::procedures(guarded.services_mut())
    }
}

impl<S: ServiceSet + Services> ServiceSet for Observed<S> {
    type Guarded = Observed<S::Guarded>;

    fn guarded(self, is_on: bool) -> Self::Guarded {
        self.map(|services| services.guarded(is_on))
    }

    fn procedures(guarded: &mut Self::Guarded) -> Vec<ProcedureStatistics> {
        guarded.procedures().collect()
    }
}
