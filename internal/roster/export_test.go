package roster

// Distinct exports distinct.
var Distinct = distinct
