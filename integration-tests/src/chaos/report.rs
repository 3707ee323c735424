pub(super) fn page(_: &crate::ledger::Ledger, verdict: &crate::ledger::Verdict) -> String {
    verdict.to_string()
}
