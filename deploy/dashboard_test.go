package deploy

import (
	"encoding/json"
	"strings"
	"testing"
)

// panel is what matters here of a panel in dashboard.json.
type panel struct {
	ID          int        `json:"id"`
	Type        string     `json:"type"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Datasource  datasource `json:"datasource"`
	GridPos     struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	} `json:"gridPos"`
	Targets []struct {
		RefID        string     `json:"refId"`
		Datasource   datasource `json:"datasource"`
		Expr         string     `json:"expr"`
		LegendFormat string     `json:"legendFormat"`
	} `json:"targets"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

func panels(t *testing.T) []panel {
	t.Helper()
	var dashboard struct {
		Panels []panel `json:"panels"`
	}
	if err := json.Unmarshal([]byte(read(t, "dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	if len(dashboard.Panels) < 10 {
		t.Fatalf("only %d panels found", len(dashboard.Panels))
	}
	return dashboard.Panels
}

// query is a panel's expression as Grafana sends it.
func query(expr string) string {
	return strings.NewReplacer("$__rate_interval", "20s", "$job", ".+").Replace(expr)
}

func TestDashboard(t *testing.T) {
	type cell struct{ x, y int }
	taken := make(map[cell]string)
	ids := make(map[int]string)
	for _, p := range panels(t) {
		if other, ok := ids[p.ID]; ok {
			t.Errorf("%q and %q have the id %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		if g := p.GridPos; g.X < 0 || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("%q is outside of the grid: %+v", p.Title, g)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				c := cell{p.GridPos.X + x, p.GridPos.Y + y}
				if other, ok := taken[c]; ok && other != p.Title {
					t.Fatalf("%q lies on %q", p.Title, other)
				}
				taken[c] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		chosen := datasource{"prometheus", "${datasource}"}
		if p.Title == "" || p.Description == "" || p.Datasource != chosen || len(p.Targets) == 0 {
			t.Errorf("panel %d %q: needs a title, a description, the chosen data source and a query", p.ID, p.Title)
		}
		refs := make(map[string]bool)
		for _, target := range p.Targets {
			if target.Datasource != chosen || target.LegendFormat == "" || target.RefID == "" || refs[target.RefID] {
				t.Errorf("%q: query %+v", p.Title, target)
			}
			refs[target.RefID] = true
			if strings.Contains(query(target.Expr), "$") {
				t.Errorf("%q: unknown variable in %s", p.Title, target.Expr)
			}
			if n := strings.Count(target.Expr, "{"); n != strings.Count(target.Expr, `job=~"$job"`) {
				t.Errorf("%q: a selector without the job in %s", p.Title, target.Expr)
			}
		}
	}
}
