package cmdline

import (
	"runtime/debug"
	"testing"
)

func TestVersionOfABuild(t *testing.T) {
	const commit = "0123456789abcdef0123456789abcdef01234567"
	cases := map[string]struct {
		stamp, commit, modified string
		want                    BuildInfo
	}{
		"a commit with a tag":                      {"v1.2.3", commit, "false", BuildInfo{Version: "1.2.3", Revision: commit}},
		"a tag before a release":                   {"v1.2.3-rc.1", commit, "false", BuildInfo{Version: "1.2.3-rc.1", Revision: commit}},
		"a commit after a tag":                     {"v1.2.4-0.20260102030405-0123456789ab", commit, "false", BuildInfo{Version: Release + "-dev+0123456789ab", Revision: commit}},
		"a commit after a tag before a release":    {"v1.2.3-rc.1.0.20260102030405-0123456789ab", commit, "false", BuildInfo{Version: Release + "-dev+0123456789ab", Revision: commit}},
		"a commit without any tag":                 {"v0.0.0-20260102030405-0123456789ab", commit, "false", BuildInfo{Version: Release + "-dev+0123456789ab", Revision: commit}},
		"a tag, and changes that nobody committed": {"v1.2.3+dirty", commit, "true", BuildInfo{Version: Release + "-dev+0123456789ab.modified", Revision: commit + "+modified"}},
		"no version control":                       {"(devel)", "", "", BuildInfo{Version: Release + "-dev", Revision: "unknown"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			info := &debug.BuildInfo{Main: debug.Module{Version: tc.stamp}}
			if tc.commit != "" {
				info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: tc.commit}, {Key: "vcs.modified", Value: tc.modified}}
			}
			got := buildOf(info)
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if known := got.Comparable() != ""; known != (tc.commit != "") {
				t.Errorf("%q is comparable: %t", got.Version, known)
			}
		})
	}
}
