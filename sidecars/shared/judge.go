package shared

import (
	"fmt"

	"istio-pod-network-controller/sidecars"
)

type facts struct {
	profile string
	choice  sidecars.Choice
	// unknown is why the choice could not be read, or "". gone reports whether the API server does not know the pod.
	unknown string
	gone    bool
	// member reports whether it is in the configuration that is in force, held whether its rules still lead to the proxy, and ended whether
	// its sandbox has ended.
	member, held, ended bool
}

type verdict struct {
	// stay keeps a pod in the configuration, and join lets it in or lets its changes in.
	stay, join bool
	// refused is what the pod's owner has to change first, waits what has to happen by itself; both may be "".
	refused, waits string
}

// choseElsewhere reports whether a pod has chosen another profile than the given one, or has opted out. A pod that chooses nothing has not.
func choseElsewhere(c sidecars.Choice, profile string) bool {
	return c.OptedOut || c.Name != "" && c.Name != profile
}

// judge decides whether a pod is to be served. A pod that is served stays until its sandbox has ended, unless it has chosen otherwise and its
// rules do not lead to the proxy any more.
func judge(f facts) verdict {
	chosen := f.choice.Name == f.profile && !f.choice.OptedOut
	switch {
	case f.ended:
		return verdict{}
	case f.unknown != "":
		return verdict{stay: f.member, waits: f.unknown}
	case f.gone || f.choice.Ending || f.choice.Finished:
		return verdict{stay: f.member}
	case choseElsewhere(f.choice, f.profile):
		return verdict{stay: f.member && f.held}
	case !chosen: // it chooses nothing any more, and keeps the proxy that it has, as with one of its own
		return verdict{stay: f.member}
	case f.choice.Profile == nil:
		return verdict{stay: f.member, refused: f.choice.Refusal}
	case !f.choice.Profile.Shared():
		return verdict{stay: f.member, refused: fmt.Sprintf("the profile %s is not shared any more: choose another one", f.profile)}
	}
	return verdict{stay: f.member, join: true}
}
