package cmdline

import (
	"cmp"
	"regexp"
	"runtime/debug"
	"strings"
)

// Release is what the present code becomes; the chart's appVersion is the same, as a test checks.
const Release = "0.1.0"

// stamp is the tag of a release. hack/release.sh has the linker set it in programs of modules below the checkout's root, into which Go stamps no tag.
var stamp string

// Version returns the release, and the commit that the program was built from.
func Version() string {
	b := Build()
	return b.Version + " (" + b.Revision + ")"
}

// BuildInfo says what the program was built from.
type BuildInfo struct{ Version, Revision string }

// Comparable returns the version, or "" for a program that has neither a tag nor a commit: it must not be compared with that of another one.
func (b BuildInfo) Comparable() string {
	if b.Version == Release+"-dev" {
		return ""
	}
	return b.Version
}

// Build returns what Go has stamped into the program.
func Build() BuildInfo {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return BuildInfo{Version: Release + "-dev", Revision: "unknown"}
	}
	return buildOf(info)
}

func buildOf(info *debug.BuildInfo) BuildInfo {
	commit, modified := "", false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	return BuildInfo{Version: versionOf(cmp.Or(stamp, info.Main.Version), commit, modified), Revision: revisionOf(commit, modified)}
}

// versionOf returns X.Y.Z for a build of a commit with the tag vX.Y.Z, which is what Go then stamps, with +dirty if it was modified. Any other build is
// X.Y.Z-dev+COMMIT of the release that it comes before.
func versionOf(stamp, commit string, modified bool) string {
	const pseudo = `[-.]\d{14}-[0-9a-f]{12}`
	tagged := regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(stamp) && !regexp.MustCompile(pseudo).MatchString(stamp)
	if tagged {
		return strings.TrimPrefix(stamp, "v")
	}
	version := Release + "-dev"
	if commit != "" {
		version += "+" + commit[:min(len(commit), 12)]
	}
	if commit != "" && modified {
		version += ".modified"
	}
	return version
}

func revisionOf(commit string, modified bool) string {
	switch {
	case commit == "":
		return "unknown"
	case modified:
		return commit + "+modified"
	}
	return commit
}
