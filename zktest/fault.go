package zktest

// Direction is one way of a connection.
type Direction uint8

const (
	ClientToServer Direction = 1 + iota
	ServerToClient
)

type Hole struct{}
type Fault struct{}

func (s *Server) holds(c *conn, d Direction) bool                { return false }
func (s *Server) swallowsDial(client string) bool                { return false }
func (s *Server) loses(c *conn, typ eventType, path string) bool { return false }
