package roster

// Distinct is for tests.
var Distinct = distinct
