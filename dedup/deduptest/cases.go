package deduptest

// cases are all, in the order of the driver's comments.
func cases() []namedCase {
	return []namedCase{
		{"Available", available},
		{"Closing", closing},
		{"ClosedWhileQueueing", closedWhileQueueing},
		{"Nested", nested},
		{"LookupNotFound", lookupNotFound},
		{"LookupLatest", lookupLatest},
		{"Unreadable", unreadable},

		{"BeginMakesRecordAndClaim", beginMakesRecordAndClaim},
		{"BeginExists", beginExists},
		{"BeginIsExclusive", beginIsExclusive},
		{"BeginTooLarge", beginTooLarge},
		{"BeginUnknown", beginUnknown},
		{"Keys", keys},

		{"QueueNotFound", queueNotFound},
		{"QueueNoWait", queueNoWait},
		{"QueueFIFO", queueFIFO},
		{"QueueLeaves", queueLeaves},
		{"QueueSeesWhatWasStored", queueSeesWhatWasStored},
		{"OneClaimAtATime", oneClaimAtATime},
		{"TokensGrow", tokensGrow},

		{"Gates", gates},
		{"Bind", bind},
		{"Renew", renew},
		{"Complete", complete},
		{"CompleteTooLarge", completeTooLarge},
		{"GiveUp", giveUp},
		{"Conflict", conflict},
		{"ClaimLost", claimLost},
		{"DeadProcess", deadProcess},
		{"Suspended", suspended},
		{"SuspendedForLong", suspendedForLong},
		{"EndsInTheBackground", endsInTheBackground},

		{"RoundTrip", roundTrip},
		{"LargeOutcomes", largeOutcomes},
		{"UnknownFields", unknownFields},
		{"EndedContext", endedContext},

		{"SweepAfterRetention", sweepAfterRetention},
		{"SweepCountsFromTheLastChange", sweepCountsFromTheLastChange},
		{"SweepLeavesUnknown", sweepLeavesUnknown},
		{"SweepLeavesClaimed", sweepLeavesClaimed},
		{"SweepMany", sweepMany},
		{"SweepTellsOfEach", sweepTellsOfEach},
		{"Scan", scan},
	}
}
