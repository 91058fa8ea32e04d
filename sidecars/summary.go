package sidecars

// Summary is how far a profile has reached the node's proxies.
type Summary struct {
	Generation             int64
	Pods, Upgraded, Failed int
	Paused                 bool
	// Message is why one of them failed, or "".
	Message string
}

// shownOf returns how a sandbox's proxy is. why is why the last one failed, or "".
func shownOf(v view, why string, status Status) shown {
	out := shown{profile: v.choice.Name, generation: v.choice.Generation}
	if p := v.choice.Profile; p != nil {
		out.upgraded = status.Ready && status.Hash == p.Hash
		out.failed = !out.upgraded && why != ""
	}
	out.failed = out.failed || v.choice.Refusal != ""
	if out.failed {
		out.message = v.sandbox.Pod() + ": " + status.Message
	}
	return out
}

// sumOf sums up the proxies of one profile. Those that were not looked at since it changed count as pods only.
func sumOf(all []shown) (sum Summary) {
	sum.Pods = len(all)
	for _, one := range all {
		sum.Generation = max(sum.Generation, one.generation)
	}
	for _, one := range all {
		if one.generation != sum.Generation {
			continue
		}
		if one.upgraded {
			sum.Upgraded++
		}
		if one.failed {
			sum.Failed++
		}
		if one.failed && (sum.Message == "" || one.message < sum.Message) {
			sum.Message = one.message
		}
	}
	return sum
}
