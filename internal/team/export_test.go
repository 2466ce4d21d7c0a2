package team

// CheckRanksOn is CheckRanks on a machine with a given amount of free memory and of mappings for a process.
var CheckRanksOn = checkRanks
