//! The randomness of back-offs and shares.

/// A random number, at least 0 and below 1. On a thread that runs the simulation it follows from the seed.
pub fn roll() -> f64 {
    seeded().unwrap_or_else(rand::random)
}

#[cfg(not(test))]
const fn seeded() -> Option<f64> {
    None
}

#[cfg(test)]
fn seeded() -> Option<f64> {
    crate::simulation::dice::seeded_roll()
}
