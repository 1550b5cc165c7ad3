package zktest

// ReadBody lets the outer tests see how a frame is read.
var ReadBody = readBody
