package main

import "testing"

func TestContain_file_belongsToInputsOrNot(t *testing.T) {
	all := map[string]bool{".": true, "a": true, "a/b": true, "c": true, "test/e2e": true, "hack/kit": true}
	reached := map[string]bool{"a": true, "c": false}
	paths := "chart/ hack/kit/ hack/run.sh docs/page.md test/e2e/"
	cases := map[string]struct {
		file    string
		reached map[string]bool
		want    bool
	}{
		"code of a package that is tested":            {"a/x.go", reached, true},
		"a test that runs":                            {"a/x_test.go", reached, true},
		"test data of a package":                      {"a/testdata/deep/x.txt", reached, true},
		"code among test data":                        {"a/testdata/x.go", reached, true},
		"a package below one":                         {"a/b/x.go", reached, false},
		"test data of a package below one":            {"a/b/testdata/x.txt", reached, false},
		"a package that is gone":                      {"a/gone/x.go", reached, true},
		"code of a package that is imported":          {"c/x.go", reached, true},
		"a test of a package that is imported":        {"c/x_test.go", reached, false},
		"a file that an imported package embeds":      {"c/page.html", reached, true},
		"a document in a package":                     {"a/README.md", reached, false},
		"the module's requirements":                   {"go.sum", reached, true},
		"the module's requirements, without packages": {"go.sum", nil, false},
		"a file of a path":                            {"chart/x.yaml", reached, true},
		"a file that is a path":                       {"hack/run.sh", nil, true},
		"a file beside paths":                         {"hack/other.sh", reached, false},
		"a document of a path":                        {"chart/README.md", reached, false},
		"a document with its whole name":              {"docs/page.md", reached, true},
		"code of a tool":                              {"hack/kit/x.go", nil, true},
		"a tool's test":                               {"hack/kit/x_test.go", reached, false},
		"a test below the tests' path":                {"test/e2e/x_test.go", nil, true},
		"code at the root":                            {"main.go", map[string]bool{".": false}, true},
		"another file at the root":                    {"Makefile", map[string]bool{".": false}, false},
		"a file in no package":                        {"docs/x.svg", map[string]bool{".": false}, false},
		"code of a package at the top that is gone":   {"gone/x.go", map[string]bool{".": false}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := (Inputs{Paths: paths}).contain(all, c.reached, c.file); got != c.want {
				t.Errorf("%s: %t, want %t", c.file, got, c.want)
			}
		})
	}
}
